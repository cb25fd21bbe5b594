"""Log a reference to each checkpoint to the active run of W&B, MLflow or Trackio, and record the run in the metadata.

A save only reads the identity of the active runs from memory. The trackers are called in a thread of this process after
the checkpoint is durable. A tracker that fails or hangs therefore cannot fail or delay a save. No data of a checkpoint
is sent. docs/adr/0038-trackers.md describes which functions of each tracker are used.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from ckstore.errors import BadInput
from ckstore.interpreter import log
from ckstore.model.checkpoint.external_run import EXTERNAL_RUNS, external_runs
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.wait_limit import wait_limit_s
from ckstore.model.words import counted, printable
from ckstore.objects.layout import MANIFEST
from ckstore.ops import events
from ckstore.ops.context import NEW, Context, Publication, Subscriber
from ckstore.store import Store, context_of

_MOST_WAITING = 64
"""The maximum number of checkpoints that wait for a tracker. Further checkpoints are reported as not logged."""
_AT_EXIT_S = 10.0
"""The maximum number of seconds that the process waits for the trackers when it ends."""
_PROBLEM = "trackers"
_REASON_MOST_CHARS = 200


def track(store: Store, run: Any = None) -> TrackerLogger:
    """Log each checkpoint saved with `store` to the active runs of trackers, and record these runs in the checkpoint.

    A repeated call with the same store only changes the run.

    Args:
        store: The store.
        run: A run of W&B, MLflow or Trackio. If None, the runs that are active when a save begins.

    Raises:
        BadInput: `run` is not a run of one of these trackers.
    """
    if run is not None and _kind_of(run) not in _ADAPTERS:
        msg = f"run must be a run of {', '.join(_ADAPTERS)}, got {type(run).__name__}"
        raise BadInput(msg, hint="pass the result of wandb.init, mlflow.start_run or trackio.init, or nothing")
    context = context_of(store)
    owners = (getattr(subscriber.told, "__self__", None) for subscriber in context.subscribers)
    tracking = next((owner for owner in owners if isinstance(owner, TrackerLogger)), None)
    if tracking is None:
        tracking = TrackerLogger(context)
        subscriber = Subscriber("tracking", tracking.told, of_caller=True, facts=tracking.facts)
        context.subscribers = (*context.subscribers, subscriber)
    tracking.run = run
    tracking.find_runs()  # a save may begin in another thread
    return tracking


class TrackerLogger:
    """Logs to trackers the checkpoints that one `Store` saves. `track` returns this object.

    Attributes:
        run: The run to which all checkpoints are logged. If None, the runs that are active when a save begins.
    """

    def __init__(self, context: Context) -> None:
        self.run: Any = None
        self._context = context
        self._pid = os.getpid()
        self._known: dict[tuple[str, str], TrackedRun] = {}  # the runs of earlier saves, by tracker and id
        self._found_in: dict[str, tuple[int, list[TrackedRun]]] = {}  # tracker -> a thread and its active run
        self._logged: set[str] = set()  # ids of the checkpoints that were passed to the logging thread
        self._waiting: deque[CheckpointInfo] = deque()
        self._refused: deque[tuple[CheckpointInfo, str]] = deque()  # with the reasons, until they are reported
        self._unfinished: dict[str, CheckpointInfo] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()
        # Exit handlers run in reverse order, so this one runs before the handlers of trackers with an earlier run.
        atexit.register(_end, weakref.ref(self))

    def wait(self, timeout_s: float = _AT_EXIT_S) -> bool:
        """Wait until all saved checkpoints are logged. Call this before the run of the tracker is finished.

        This does not wait for a pending background save. Call `store.background.wait()` first.

        Returns:
            False if a tracker has not answered after `timeout_s`.
        """
        self._report_refused()
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, wait_limit_s(timeout_s))

    def facts(self) -> dict[str, list[dict[str, str]]]:
        """Return the identities of the current runs, for the metadata of a save that begins in this thread."""
        self._report_refused()
        if os.getpid() != self._pid:  # a run belongs to the process that began it
            self._warn(f"saves of process {os.getpid()} are not tracked, since it is a fork of process {self._pid}")
            return {}
        found = self.find_runs()
        if not found and not _is_disabled():
            self._warn("no run of a tracker is active, so checkpoints are not logged")
        for run in found:
            self._known[run.identity["kind"], run.identity["run"]] = run
        return {EXTERNAL_RUNS: [run.identity for run in found]} if found else {}

    def find_runs(self) -> list[TrackedRun]:
        """Return the runs for a save that begins in this thread, and remember the active runs of this thread."""
        found = []
        for kind in _ADAPTERS:
            try:
                found += self._runs_of(kind)
            except Exception as error:  # noqa: BLE001 - foreign code, and no error of it may fail a save
                self._warn(f"the active run of {kind} is unknown, so checkpoints are not logged to it: {_text(error)}")
        return found

    def _runs_of(self, kind: str) -> list[TrackedRun]:
        if self.run is not None:
            return [_ADAPTERS[kind](self.run)] if _kind_of(self.run) == kind else []
        active = _active(kind)
        thread = threading.get_ident()
        if active is None:
            # In MLflow and Trackio, a run is active in one thread. If a background thread saves, use the run that was
            # active in another thread.
            in_thread, before = self._found_in.get(kind, (thread, []))
            if in_thread != thread and kind != "wandb":
                return before
            self._found_in.pop(kind, None)  # the run of this thread has ended
            return []
        self._found_in[kind] = thread, [_ADAPTERS[kind](active)]
        return self._found_in[kind][1]

    def told(self, publication: Publication) -> Sequence[str]:
        """Pass a published checkpoint to the logging thread, at most once. This neither blocks nor raises an error."""
        info = publication.checkpoint
        if os.getpid() != self._pid or info.id in self._logged:
            return ()
        refusal = ""
        if not any((run.kind, run.run) in self._known for run in external_runs(info.metadata)):
            if not self._known or EXTERNAL_RUNS not in info.metadata or publication.origin not in NEW:
                return ()
            refusal = f"the metadata of the caller has {EXTERNAL_RUNS!r}, which names the runs"
        else:
            self._logged.add(info.id)
        with self._changed:
            if not refusal and len(self._unfinished) >= _MOST_WAITING:
                refusal = f"{counted(_MOST_WAITING, 'checkpoint')} already wait for the tracker"
            if refusal:
                self._refused.append((info, refusal))
            else:
                self._unfinished[info.id] = info
                self._waiting.append(info)
            if self._thread is None and self._waiting:
                self._start(info)
        # A background save calls this while it holds the lock of its queue, and a log handler could take long.
        if publication.origin != "reported":
            self._report_refused()
        return ()

    def _start(self, info: CheckpointInfo) -> None:
        # Use a daemon thread, because a tracker that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._log_all, name="ckstore-trackers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of threads, or the interpreter is ending
            text = f"{info.name} is saved, and waits for its tracker: {_text(error)}"
            self._context.notices.problems[_PROBLEM] = text
        else:
            self._thread = thread

    def _report_refused(self) -> None:
        while self._refused:
            self._fail(*self._refused.popleft())

    def _log_all(self) -> None:
        """Log the waiting checkpoints, then end. The next checkpoint starts another thread."""
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                info = self._waiting.popleft()
            failures = []
            for identity in external_runs(info.metadata):
                run = self._known.get((identity.kind, identity.run))
                try:
                    if run is not None:
                        run.log(self._record(info))
                except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; the error is reported
                    failures.append(f"{identity.kind}: {_text(error)}")
            if failures:
                self._fail(info, "; ".join(failures))
            else:
                self._context.notices.problems.pop(_PROBLEM, None)
            with self._changed:
                self._unfinished.pop(info.id, None)
                self._changed.notify_all()

    def _record(self, info: CheckpointInfo) -> dict[str, Any]:
        """Return the facts about a checkpoint for the trackers, as values of JSON without NaN and infinity."""
        layout = self._context.layout
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in info.metrics.items()}
        return {
            "ref": info.name,
            "id": info.id,
            "run": info.run,
            "step": info.step,
            "created": info.created,
            "size_bytes": info.logical_bytes,
            "new_bytes": info.new_bytes,
            "metrics": metrics,
            "store": str(layout.root),
            # Use the id, because the step may name another checkpoint after a rollback.
            "url": f"ckstore://{layout.root}/{info.run}/{info.id}",
            "manifest": Path(str(layout.checkpoint(info.key) / MANIFEST)).as_uri(),
        }

    def report_unlogged(self) -> None:
        """Wait for the trackers at the end of the process, and report the checkpoints that they did not get."""
        if os.getpid() == self._pid and not self.wait():
            for info in list(self._unfinished.values()):
                self._fail(info, f"the tracker has not answered within {_AT_EXIT_S:.0f} s at the end of the process")

    def _fail(self, info: CheckpointInfo, why: str) -> None:
        """Report that a checkpoint was not logged: one warning for each reason, and an event for each checkpoint."""
        self._warn(why, f"{info.name} is saved, but was not logged to its tracker: {why}")
        events.note(self._context, "untracked", info.key.run_step, id=info.id, why=why)

    def _warn(self, reason: str, text: str = "") -> None:
        text = printable(text or reason)
        self._context.notices.problems[_PROBLEM] = text
        if reason not in self._warned:
            self._warned.add(reason)
            # Do not issue a `CkstoreWarning`. A filter may turn it into an error, although the checkpoint is saved.
            log(logging.WARNING, text)


class TrackedRun(Protocol):
    """A run of a tracker.

    Attributes:
        identity: The members of `ExternalRun`.
    """

    identity: dict[str, str]

    def log(self, record: dict[str, Any]) -> None:
        """Log a checkpoint as a reference."""


class WandbRun:
    """A run of W&B. Each checkpoint is a version of an artifact with one reference.

    The summary of the run names the newest checkpoint.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        project = "/".join(part for part in (run.entity, run.project) if part)
        self.identity = _identity("wandb", run.id, project, run.name, run.url)

    def log(self, record: dict[str, Any]) -> None:
        """Log a checkpoint. Without a connection, W&B keeps the entry until ``wandb sync``."""
        # Do not use `run.log`, which drops the values of a step before the last logged step, for example after a
        # rollback.
        _log_artifact(sys.modules["wandb"], self._run, record, record["url"])
        self._run.summary["ckstore"] = {name: record[name] for name in ("ref", "id", "step")}


class TrackioRun:
    """A run of Trackio. Each checkpoint is a version of an artifact that refers to its manifest."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.identity = _identity("trackio", run.id, run.project, run.name, run.url)

    def log(self, record: dict[str, Any]) -> None:
        """Log a checkpoint."""
        # Do not use `run.log`, which changes the step of the next values that the program logs without a step. Pass the
        # URL of the manifest, because Trackio refuses the scheme ckstore://.
        _log_artifact(sys.modules["trackio"], self._run, record, record["manifest"])


class MlflowRun:
    """A run of MLflow. Each checkpoint is a small JSON file in its artifacts, and a tag of the run names the newest."""

    def __init__(self, run: Any) -> None:
        mlflow = sys.modules["mlflow"]
        self._tracking_uri = str(mlflow.get_tracking_uri())
        info = run.info
        url = ""
        parts = urlsplit(self._tracking_uri)
        if parts.scheme in {"http", "https"} and parts.hostname:
            # Remove the password and the query, which the URI may contain.
            server = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
            url = f"{urlunsplit(server).rstrip('/')}/#/experiments/{info.experiment_id}/runs/{info.run_id}"
        self.identity = _identity("mlflow", info.run_id, info.experiment_id, info.run_name, url)

    def log(self, record: dict[str, Any]) -> None:
        """Log a checkpoint."""
        # Do not log metrics, because MLflow shows the value of the greatest step, even after a rollback to an earlier
        # step (findings/mlflow-run-shows-the-metric-of-an-abandoned-part.sh).
        client = sys.modules["mlflow"].MlflowClient(tracking_uri=self._tracking_uri)
        run_id, name = self.identity["run"], f"{record['step']}.{record['id'].rpartition('-')[2][:12]}.json"
        client.log_dict(run_id, record, f"ckstore/{record['run']}/{name}")
        client.set_tag(run_id, "ckstore.latest", f"{record['ref']} {record['id']}")
        client.set_tag(run_id, "ckstore.store", record["store"])


_ADAPTERS: dict[str, Callable[[Any], TrackedRun]] = {"wandb": WandbRun, "mlflow": MlflowRun, "trackio": TrackioRun}
"""The trackers, by the names of their modules."""


def _end(tracking: weakref.ref[TrackerLogger]) -> None:
    """Report the checkpoints that were not logged, if the logger still exists."""
    logger = tracking()
    if logger is not None:
        logger.report_unlogged()


def _log_artifact(module: Any, run: Any, record: dict[str, Any], url: str) -> None:
    # A run name is valid in the name of an artifact. It has at most 100 characters, all of which these trackers allow.
    artifact = module.Artifact(f"ckstore-{record['run']}", type="checkpoint", metadata=record)
    artifact.add_reference(url, name="checkpoint", checksum=False)  # without reading the data
    run.log_artifact(artifact, aliases=["latest", f"step-{record['step']}"])


def _identity(kind: str, run: object, project: object, name: object, url: object) -> dict[str, str]:
    values = {"run": run, "project": project, "name": name, "url": url}
    return {"kind": kind, **{key: str(value) for key, value in values.items() if value}}


def _kind_of(run: object) -> str:
    return type(run).__module__.partition(".")[0]


def _active(kind: str) -> Any:
    """Return the active run of a tracker that the program has imported, or None."""
    module = sys.modules.get(kind)
    if module is None:
        return None
    if kind == "wandb":
        return None if _is_disabled() else module.run
    if kind == "mlflow":
        return module.active_run()
    return sys.modules["trackio.context_vars"].current_run.get()


def _is_disabled() -> bool:
    """Whether the program disabled W&B, which then has a run that logs nothing."""
    return bool(getattr(getattr(sys.modules.get("wandb"), "run", None), "disabled", False))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:_REASON_MOST_CHARS]
