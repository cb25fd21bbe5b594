"""The saves of one handle in the background: `Store.background`."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.training_identity import after_save
from ckstore.ops.api_calls import api_call_in_memory
from ckstore.ops.notices import tell_left_out
from ckstore.ops.save.continuation import know_training
from ckstore.ops.save.tolerance import tolerated

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.errors import CkstoreError
    from ckstore.model.saver.messages import Order
    from ckstore.model.settings.patience import OnFailure
    from ckstore.ops.context import Context
    from ckstore.saver.client.client import Client
    from ckstore.saver.client.pending import PendingSave
    from ckstore.saver.client.queue import SaverLimits
    from ckstore.saver.client.unchanged_storages import UnchangedNames


class BackgroundSaves:
    """What `Store.save_async` began and has not ended, and the process that ends it: `Store.background`.

    Attributes:
        path: Directory of the store.
    """

    _made: Client | None = None
    """It is made at the first save, and has a process, a thread and memory from then on."""

    def __init__(self, context: Context, path: Path) -> None:
        self.path = path
        self._context = context

    @api_call_in_memory
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every save of this handle in the background has ended.

        Returns:
            False: some have not after `timeout_s`; None waits as long as the saver gets on.

        Raises:
            CkstoreError: One of them failed, and its `result` was not read.
        """
        if self._made is None:
            return True
        done = self._made.wait(timeout_s)
        self._made.raise_unread()
        return done

    @api_call_in_memory
    def flush(self, timeout_s: float) -> bool:
        """Finish the saves in the background within `timeout_s`, as before a preemption; else give them up.

        A save whose publishing has begun is not given up: it may still appear. The others leave the checkpoint before
        them as the newest.

        Returns:
            Whether all of them are durable.

        Raises:
            CkstoreError: One of them failed, and its `result` was not read.
        """
        if self._made is None:
            return True
        # Those that failed before are no news, and those that fail now may be tolerated.
        under_way = self._made.under_way()
        done = self._made.wait(timeout_s)
        if not done:
            self._made.cancel_all()
        self._made.raise_unread()
        return done and all(pending.exception() is None for pending in under_way)

    @api_call_in_memory
    def staging_bytes(self, state: object) -> int:
        """Return how much memory a save of this state in the background takes, for each of `max_in_flight`.

        Raises:
            CannotStore: A value in the state cannot be stored.
        """
        return self._client().staging_bytes(state)

    @api_call_in_memory
    def prewarm(self, state: object | None = None, *, nice: int = 0) -> None:
        """Start the saver and make the memory that a save of this state needs: the first is as quick as others then.

        For a state on a GPU it also pins that memory and waits for the kernel that compares tensors to be compiled.

        Raises:
            CannotStore: A value in the state cannot be stored.
            InsufficientSpace: There is no memory for the copy.
            SaveFailed: No saver can be started.
        """
        from ckstore.saver.client.queue import SaverLimits

        limits = SaverLimits(nice=nice)
        limits.check()
        self._context.check_writable()
        self._client().prewarm(state, limits)

    def _submit(
        self,
        state: object,
        order: Order,
        limits: SaverLimits,
        unchanged: UnchangedNames | None,
        on_failure: OnFailure = "raise",
    ) -> PendingSave:
        """Have a save begun; see `ckstore.Store.save_async`."""
        # Before the order is sent: a second saver must not draw another training for it.
        know_training(self._context, order.run)
        tolerate = None if on_failure == "raise" else partial(tolerated, self._context)
        parents = self._context.known.last_parents
        pending = self._client().submit(state, order, limits, parents, unchanged, tolerate)
        if pending.skipped:
            self._context.totals.not_saved("skipped")
        return pending

    def _call_failed(self, run: str) -> None:
        """Note that a save of a run was refused: what comes after it goes on from what was there before."""
        if self._made is not None:
            self._made.call_failed(run)

    def _settle(self, run: str) -> None:
        """Wait for the saves of a run, so that the next one comes after them."""
        if self._made is not None:
            self._made.raise_unread()
            self._made.wait(None, run)
            self._made.raise_unread()

    def _close(self, timeout_s: float | None) -> None:
        """Let the saver go; None: without waiting for it, and without the errors of its saves."""
        if self._made is None:
            return
        if timeout_s is not None:
            self._made.wait(timeout_s)
        self._made.close()
        if timeout_s is not None:
            self._made.raise_unread()

    def _client(self) -> Client:
        """Return the trainer's side of the saver, which is made now if there is none."""
        if self._made is not None:
            return self._made
        from ckstore.saver.client.client import Client

        context = self._context

        def ended(outcome: CheckpointInfo | CkstoreError) -> None:
            if isinstance(outcome, CheckpointInfo):
                parents = context.known.last_parents
                parents[outcome.run] = after_save(parents.get(outcome.run), outcome)
                context.totals.saved(outcome)
                context.totals.tried_again(0 if outcome.counters is None else outcome.counters.retry_count)
            else:
                context.totals.not_saved("failed")

        catalog_path = None if context.catalog_path is None else str(context.catalog_path)
        made = Client(str(self.path), catalog_path, ended, tell_left_out)
        closing = weakref.finalize(self, made.close)
        closing.atexit = False
        # One step: of two threads the second gets what the first made. There is no lock that a fork could leave
        # taken, and what was made for nothing has no process, thread or memory yet.
        first: Client = vars(self).setdefault("_made", made)
        if first is not made:
            closing.detach()
        return first
