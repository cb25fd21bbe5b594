"""Follow a run: yield each checkpoint as it becomes durable.

The directory of the run is authoritative. inotify only reports when the directory must be checked, and for which names.
Without inotify, or if other hosts may save, the directory is checked once a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from ckstore.errors import BadInput
from ckstore.fs import files
from ckstore.fs.notify import Watch
from ckstore.model.checkpoint.evaluation import check_metrics
from ckstore.model.checkpoint.refs import Ref
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import DEFAULT_RUN, CheckpointKey, key_of
from ckstore.model.sizes import is_number
from ckstore.objects.checkpoints import key_with_id
from ckstore.ops.api_calls import api_call
from ckstore.ops.context import Context
from ckstore.ops.refs.evaluations import ATTEMPTS, Evaluator
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.listing import in_one_run, infos, run_meant

# The interval of checks, since saves of other hosts cause no inotify event, and another thread may call `close`.
_LOOK_S = 1.0
_ALL_S = 30.0  # with inotify, the interval at which the whole directory is checked


class Follower:
    """An iterator and context manager that yields the checkpoints of a run, the oldest first, and then each new one.

    Attributes:
        run: The run.
    """

    def __init__(
        self,
        context: Context,
        run: str,
        after: CheckpointInfo | None,
        timeout_s: float | None,
        *,
        bring: Callable[[], None] = lambda: None,
        evaluator: Evaluator | None = None,
    ) -> None:
        self.run = run
        self._bring = bring
        self._evaluator = evaluator  # selects checkpoints that lack a metric; None to yield every checkpoint
        self._context = context
        self._after = after
        self._timeout_s = timeout_s
        self._given: dict[CheckpointKey, Stamp] = {}
        self._ids: set[str] = set()
        self._ready: deque[CheckpointInfo] = deque()
        self._torn: set[str] = set()
        self._watch: Watch | None = None
        self._closed = False
        self._in_use = threading.Lock()
        self._all_at_s = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CheckpointInfo:
        """Return the next checkpoint, waiting for it if necessary.

        Raises:
            StopIteration: There was no new checkpoint for `timeout_s`, or `close` was called.
            CkstoreError: The directory of the run cannot be read.
        """
        with self._in_use:
            if self._evaluator is not None:
                self._end_evaluation(self._evaluator)
            if not self._closed:
                found = self._next()
                if self._evaluator is not None:
                    self._tell_dropped(self._evaluator)
                if found is not None:
                    return found
        self.close()
        raise StopIteration

    def _next(self) -> CheckpointInfo | None:
        """Return the next checkpoint, or None after the timeout or `close`."""
        deadline_s = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        if self._evaluator is None and (ready := self._next_ready()) is not None:
            return ready
        names = self._wait(0.0)
        while not self._closed:
            self._look(names | self._torn if names is not None else None)
            if self._evaluator is not None:
                if (found := self._pick(self._evaluator)) is not None:
                    return found
            elif (ready := self._next_ready()) is not None:
                return ready
            left_s = _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic())
            if left_s <= 0:
                break
            names = self._wait(left_s)
        return None

    def close(self) -> None:
        """Stop following. If a thread is waiting for the next checkpoint, its wait ends within a second.

        If the last yielded checkpoint still lacks its metric, another evaluator can evaluate it, and the cancelled
        evaluation does not count as failed.
        """
        self._close(tried=False)

    def _close(self, *, tried: bool) -> None:
        self._closed = True
        # If another thread is waiting for a checkpoint, that thread closes the descriptor.
        if self._in_use.acquire(blocking=False):
            try:
                self._stop_watching()
                if self._evaluator is not None:
                    with suppress(OSError):  # the lock of the record is released even after an error
                        self._evaluator.end(tried=tried)
            finally:
                self._in_use.release()

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C or an exit, the evaluation does not count as failed.
        self._close(tried=kind is not None and issubclass(kind, Exception))

    def __del__(self) -> None:
        self._close(tried=True)  # the loop was left by an error or by `break`

    def _act_places(self) -> tuple[object, ...]:
        return self._context.act_places()

    @api_call
    def _look(self, names: set[str] | None) -> None:
        """Find new checkpoints among the given names, or among all names if None.

        Before new checkpoints are yielded, their parent directories are fsynced, since the process that saved them may
        not have done this (law N2).
        """
        self._bring()
        if self._watch is None and self._context.view.sees_changes:
            with suppress(FileNotFoundError, NotADirectoryError):  # the run does not exist yet
                # Start watching before listing, so that a name that appears in between causes an event.
                self._watch = Watch.of(self._context.layout.checkpoints / self.run)
            names = None
        stamps = self._stamps(names)
        fresh = {place: stamp for place, stamp in stamps.items() if self._given.get(place) != stamp}
        if not fresh:
            return
        for parent in (
            self._context.layout.checkpoints / self.run,
            self._context.layout.checkpoints,
            self._context.layout.staging,
        ):
            with suppress(PermissionError):  # this user may only read the checkpoints
                files.sync_directory(parent)
        found = infos(self._context, at=fresh, superseded=True)
        # Directories without a complete checkpoint are checked again each time, since a restore may complete them.
        self._torn = {key.directory for key in fresh.keys() - {info.key for info in found}}
        self._given |= {info.key: fresh[info.key] for info in found}
        # Compare by id, since a compaction creates another directory of the same checkpoint.
        new = [info for info in {info.id: info for info in found}.values() if info.id not in self._ids]
        new = [info for info in new if not info.superseded]
        self._ids |= {info.id for info in new}
        # Exclude the checkpoint `after` by its id, since a compaction moves it to a later place in the order.
        wanted = [
            info
            for info in new
            if self._after is None or (info.id != self._after.id and info.order > self._after.order)
        ]
        if self._evaluator is not None:
            self._evaluator.pass_over({info.id for info in new} - {info.id for info in wanted})
        self._ready.extend(wanted)

    @api_call
    def _next_ready(self) -> CheckpointInfo | None:
        """Return the next listed checkpoint that still exists, or None."""
        layout = self._context.layout
        while self._ready:
            info = self._ready.popleft()
            # If the directory is missing, a compaction may have created another one. To find it, the run is listed.
            if layout.inode(info.key) is not None or key_with_id(layout, info.run, info.step, info.id) is not None:
                return info
        return None

    @api_call
    def _end_evaluation(self, evaluator: Evaluator) -> None:
        evaluator.end(tried=True)

    @api_call
    def _pick(self, evaluator: Evaluator) -> CheckpointInfo | None:
        evaluator.add(self._ready)
        self._ready.clear()
        return evaluator.pick()

    @api_call
    def _tell_dropped(self, evaluator: Evaluator) -> None:
        evaluator.tell_dropped(self.run)

    def _stamps(self, names: set[str] | None) -> dict[CheckpointKey, Stamp]:
        layout = self._context.layout
        if names is None:
            self._all_at_s = time.monotonic()
            found = layout.stamps(self.run)
            self._given = {place: stamp for place, stamp in self._given.items() if place in found}
        else:
            keys = [key for name in names if (key := key_of(self.run, name)) is not None]
            found = {key: layout.stamp(key) for key in keys}
        return {place: stamp for place, stamp in found.items() if stamp is not None}

    def _wait(self, timeout_s: float) -> set[str] | None:
        """Wait for a change, and return the names to check, or None to check all names."""
        if self._watch is None:
            time.sleep(timeout_s)
            return None
        names = self._watch.wait(timeout_s)
        # After too many events, or if the directory was removed, a new watch of the current directory is needed.
        if names is None:
            self._stop_watching()
            return None
        return None if time.monotonic() - self._all_at_s > _ALL_S else names


def follow(
    context: Context,
    run: str | None,
    after: AnyRef | None,
    timeout_s: float | None,
    bring: Callable[[], None] | None = None,
    *,
    lacking: str | Iterable[str] | None = None,
    newest_first: bool = False,
    attempts: int | None = ATTEMPTS,
) -> Follower:
    """Follow a run; see `ckstore.Store.follow`. `bring` is called before each check, and may add checkpoints."""
    evaluator = None
    if lacking is not None:
        evaluator = Evaluator(context, check_metrics(lacking), newest_first=newest_first, attempts=attempts)
    elif newest_first:
        hint = "without lacking=, checkpoints are yielded in the order of their commits"
        raise BadInput("newest_first=True needs lacking=", hint=hint)
    elif attempts != ATTEMPTS:
        hint = "without lacking=, each checkpoint is yielded once"
        raise BadInput(f"attempts={attempts!r} needs lacking=", hint=hint)
    if timeout_s is not None and not (is_number(timeout_s) and timeout_s >= 0):
        raise BadInput(f"timeout_s must be a number of seconds, 0 or more, or None, got {timeout_s!r}")
    bring = bring or (lambda: None)
    bring()
    run = run_meant(context, run)
    if run is None:
        run = in_one_run(context, Ref(None, "latest", "latest")).run or next(iter(context.layout.runs()), DEFAULT_RUN)
    of_run = replace(context, run=run)  # in `after`, a ref without a run means a checkpoint of the followed run
    start = after if after is None or isinstance(after, CheckpointInfo) else find(of_run, after)
    return Follower(context, run, start, timeout_s, bring=bring, evaluator=evaluator)
