"""Write the metrics of a store and its runs (`ckstore metrics`), and of the saves of an open store, as text."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ckstore.errors import BadInput
from ckstore.fs import dirfd_stat
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.metrics import Metric, openmetrics
from ckstore.model.times import time_of_text
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.context import Context
from ckstore.ops.refs.listing import infos
from ckstore.ops.report.usage import usage_of

_MODE = 0o644


def write_metrics(context: Context, store: Path, path: Path, labels: Mapping[str, str]) -> None:
    """Replace the file at `path` with the metrics of an open store; see `ckstore.Store.write_metrics`."""
    _replace(context.layout.outside(path), openmetrics(context.totals.metrics(), str(store), labels))


def write_text(context: Context, path: Path | None, text: str, what: str) -> None:
    """Write a text to the file at `path`, if a path is given."""
    try:
        if path is not None:
            _replace(context.layout.outside(path), text)
    except OSError as error:
        msg = f"{what} cannot be written to {path}: {describe_os_error(error)}"
        raise BadInput(msg, hint="give a file in a directory that exists and is writable") from error


def _replace(path: Path, text: str) -> None:
    """Replace the file at `path` atomically with a file that all users can read.

    If `path` is a pipe or a device, write the text to it instead.
    """
    data = text.encode("utf-8")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            # If this process is root, a rename onto /dev/stdout or /dev/null would remove the device.
            path.write_bytes(data)
            return
    # Create the new file in the same directory and rename it, so that readers get the old or the new file.
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            # `mkstemp` creates the file with the mode 0600, but a collector of metrics runs as another user.
            os.fchmod(file.fileno(), _MODE)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


MoreMetrics = Callable[[Context, Sequence[CheckpointInfo]], list[Metric]]
"""A function of a higher floor, which returns more metrics for the current checkpoints of a store."""


def metrics(context: Context, path: Path | None, more: MoreMetrics) -> str:
    """Return the metrics as text, and write them to a file if a path is given."""
    text = openmetrics(store_metrics(context, more), str(context.layout.root), {})
    write_text(context, path, text, "the metrics")
    return text


def store_metrics(context: Context, more: MoreMetrics) -> list[Metric]:
    """Return the metrics; see `ckstore.Store.metrics`."""
    every = infos(context, superseded=True)
    used, listed = usage_of(context, every), [info for info in every if not info.superseded]
    free = dirfd_stat.free_space(context.layout.path)
    newest = {info.run: info for info in listed}
    damaged = dict.fromkeys(newest, 0)
    for info in listed:
        damaged[info.run] += info.damaged

    def gauge(name: str, about: str, label: str, samples: dict[str, float]) -> Metric:
        return Metric(f"ckstore_{name}", "gauge", about, label, samples)

    kinds: dict[str, float] = {
        "alone": used.alone_bytes,
        "shared": used.shared_bytes,
        "unused": used.unused_bytes,
        "waiting": used.waiting_bytes,
        "free": free.free_bytes,
    }
    created_s = {run: time_of_text(info.created).timestamp() for run, info in newest.items()}
    by_run: tuple[tuple[str, str, Callable[[str], float]], ...] = (
        ("run_newest_step", "Step of the newest checkpoint", lambda run: newest[run].step),
        ("run_newest_timestamp_seconds", "Time of the newest checkpoint", lambda run: created_s[run]),
        ("run_damaged", "Checkpoints that are marked as damaged", lambda run: damaged[run]),
    )
    held = (
        ("run_checkpoints", "Complete checkpoints", "checkpoint_count"),
        ("run_logical_bytes", "Size of the checkpoints without sharing", "logical_bytes"),
        ("run_alone_bytes", "Space that deleting the run would free", "alone_bytes"),
        ("run_shared_bytes", "Bytes of blobs that several runs use, divided among these runs", "shared_bytes"),
    )
    metrics = [gauge("store_bytes", "Bytes of blobs by use, and free bytes of the filesystem", "kind", kinds)]
    metrics += [gauge(name, about, "run", {run: of(run) for run in newest}) for name, about, of in by_run]
    metrics += [
        gauge(name, about, "run", {one.run: getattr(one, field) for one in used.runs}) for name, about, field in held
    ]
    return metrics + more(context, listed)
