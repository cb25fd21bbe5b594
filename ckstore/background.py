"""The background saves of one store handle (see `Store.background`)."""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.api_calls import api_call_in_memory
from ckstore.ops.notices import tell_left_out
from ckstore.ops.pace import process_end_s
from ckstore.ops.save.continuation import know_training
from ckstore.ops.save.tolerance import tolerated

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.errors import CkstoreError
    from ckstore.model.saver.messages import Order
    from ckstore.model.settings.patience import OnFailure
    from ckstore.ops.context import Context
    from ckstore.ops.save.save import Request
    from ckstore.saver.client.client import Client
    from ckstore.saver.client.pending import PendingSave
    from ckstore.saver.client.queue import SaverLimits
    from ckstore.saver.client.unchanged_storages import UnchangedNames


class BackgroundSaves:
    """The unfinished saves of `Store.save_async`, and the saver process that finishes them.

    See `Store.background`.

    Attributes:
        path: Directory of the store.
    """

    _made: Client | None = None
    """The client of the saver. `_client` creates it on first use, still without a process, a thread or memory."""

    def __init__(self, context: Context, path: Path) -> None:
        self.path = path
        self._context = context

    @api_call_in_memory
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every background save of this handle has ended.

        Args:
            timeout_s: Maximum time to wait, in seconds. If None, wait as long as the saver makes progress.

        Returns:
            Whether all saves have ended. False if some have not ended after `timeout_s`.

        Raises:
            CkstoreError: A save failed, and its `result` was not read.
            UnknownOutcome: This process was forked while a save was unfinished. This is raised once.
        """
        if self._made is None:
            return True
        self._made.check_process()
        done = self._made.wait(timeout_s)
        self._made.raise_unread()
        return done

    @api_call_in_memory
    def flush(self, timeout_s: float) -> bool:
        """Finish the background saves within `timeout_s`, for example before a preemption, or abandon them.

        A save that has begun to publish is not abandoned, and its checkpoint may still appear. If a save is abandoned,
        the previous checkpoint remains the newest.

        Returns:
            Whether all saves are durable.

        Raises:
            CkstoreError: A save failed, and its `result` was not read.
            UnknownOutcome: This process was forked while a save was unfinished. This is raised once.
        """
        if self._made is None:
            return True
        self._made.check_process()
        # The result covers the saves that are unfinished now, including those whose failure is tolerated. Earlier
        # failures do not count.
        under_way = self._made.under_way()
        done = self._made.wait(timeout_s)
        if not done:
            self._made.cancel_all()
        self._made.raise_unread()
        return done and all(pending.exception() is None for pending in under_way)

    @api_call_in_memory
    def staging_bytes(self, state: object) -> int:
        """Return the bytes of memory that each of up to `max_in_flight` unfinished saves of this state needs.

        Raises:
            CannotStore: A value in the state cannot be stored.
        """
        return self._client().staging_bytes(state)

    @api_call_in_memory
    def prewarm(self, state: object | None = None, *, nice: int = 0) -> None:
        """Start the saver and allocate the memory for saving this state, so that the first save is not slow.

        For a state on a GPU, this also pins that memory and waits until the kernel that compares tensors is compiled.

        Args:
            state: The state that will be saved. If None, only the saver is started.
            nice: Niceness of the saver, as in `Store.save_async`.

        Raises:
            CannotStore: A value in the state cannot be stored.
            InsufficientSpace: There is no memory for the copy.
            SaveFailed: No saver can be started.
        """
        from ckstore.saver.client.queue import SaverLimits

        limits = SaverLimits(nice=nice)
        limits.check()
        self._context.check_accepts_writes()
        self._client().prewarm(state, limits)

    def _submit(
        self,
        state: object,
        request: Request,
        parent: str,
        limits: SaverLimits,
        unchanged: UnchangedNames | None,
        *,
        on_failure: OnFailure,
    ) -> PendingSave:
        """Start a background save.

        See `ckstore.Store.save_async`. `parent` is a ref that the saver looks up.
        """
        order = _order_of(request, parent)
        # Decide the training before the order is sent, so that a second saver does not create another training for the
        # run.
        know_training(self._context, order.run)
        tolerate = None if on_failure == "raise" else partial(tolerated, self._context)
        parents = self._context.known.last_parents
        pending = self._client().submit(state, order, limits, parents, unchanged, tolerate)
        if pending.skipped:
            self._context.totals.not_saved("skipped")
        return pending

    def _call_failed(self, run: str) -> None:
        """Record that a call for a run failed; the next save of the run ignores the names in its `unchanged`."""
        if self._made is not None:
            self._made.call_failed(run)

    def _settle(self, run: str) -> None:
        """Wait for the background saves of a run, so that the next save is committed after them."""
        if self._made is not None:
            self._made.raise_unread()
            self._made.wait(None, run)
            self._made.raise_unread()

    def _close(self, timeout_s: float | None) -> None:
        """Release the saver; without a `timeout_s`, neither wait for the saver nor raise the errors of its saves."""
        if self._made is None:
            return
        if timeout_s is not None:
            self._made.wait(timeout_s)
        self._made.close()
        if timeout_s is not None:
            self._made.raise_unread()

    def _client(self) -> Client:
        """Return the client of the saver, and create it if necessary."""
        if self._made is not None:
            return self._made
        from ckstore.model.saver.messages import Open
        from ckstore.saver.client.client import Client

        context = self._context

        def ended(outcome: CheckpointInfo | CkstoreError) -> None:
            if isinstance(outcome, CheckpointInfo):
                context.totals.saved(outcome)
                context.totals.tried_again(0 if outcome.counters is None else outcome.counters.retry_count)
                if any(subscriber.of_caller for subscriber in context.subscribers):
                    from ckstore.ops.save.subscribers import tell_caller

                    tell_caller(context, outcome)
            else:
                context.totals.not_saved("failed")

        catalog_path = None if context.catalog_path is None else str(context.catalog_path)
        opening = Open(str(self.path), context.settings.uuid, catalog_path, attached=context.attached)
        made = Client(opening, ended, tell_left_out)
        closing = weakref.finalize(self, made.close)
        closing.atexit = False
        # `setdefault` is atomic, so a second thread uses the client of the first thread. No lock is used, since a lock
        # could remain taken in a forked child. The unused client of the second thread has no process, thread or memory
        # yet.
        first: Client = vars(self).setdefault("_made", made)
        if first is not made:
            closing.detach()
        return first


def _order_of(request: Request, parent: str) -> Order:
    """Check a request, and return the order for it; the number and the state of the order are added later."""
    from ckstore.model.saver.messages import Order

    request.check()
    return Order(
        number=0,
        run=request.run,
        step=request.step,
        about=request.about,
        tags=request.tags,
        if_exists=request.if_exists,
        parent=parent,
        patience=request.patience.until(process_end_s() - time.monotonic()),
        if_run_in_use=request.if_run_in_use,
    )
