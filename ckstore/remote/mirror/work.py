"""One step of mirroring: find what the mirror lacks, and push the newest of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.ops.config_file import MIRROR, MIRROR_BYTES_S, setting_of
from ckstore.ops.events import note
from ckstore.ops.mirrored import add_mirrored, behind
from ckstore.ops.refs.listing import infos
from ckstore.remote import transfer
from ckstore.remote.objects import Remote
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import reach, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.ops.context import Context
    from ckstore.remote.choice import TransferOptions


class Mirror:
    """What one process has to do for a mirror.

    Args:
        context: The store.
        begin: Called with the checkpoint that is pushed next.
        progress: As with `ckstore.Store.push`.
    """

    def __init__(
        self,
        context: Context,
        begin: Callable[[CheckpointInfo], None] = lambda _: None,
        progress: Progress | None = None,
    ) -> None:
        self._context = context
        self._begin = begin
        self._progress = progress
        # How often each could not be pushed: one that is damaged here must not keep the others back.
        self._failures: Counter[str] = Counter()

    @property
    def name(self) -> str | None:
        """The mirror, as the settings have it now."""
        return setting_of(self._context.layout, MIRROR)

    def todo(self) -> list[CheckpointInfo]:
        """Return what the mirror lacks as far as is known here, the newest first; what fails comes last."""
        name = self.name
        if name is None:
            return []
        lacking = behind(self._context.layout, name, infos(self._context))
        return sorted(lacking, key=lambda info: self._failures[info.id])  # stable: else the newest first

    def step(self) -> bool:
        """Push the newest checkpoint that the mirror lacks; False: it lacks none.

        Raises:
            CkstoreError: It could not be pushed; another step tries again.
        """
        name, todo = self.name, self.todo()
        if name is None or not todo:
            return False
        there = reach(self._context, name, writing=True)
        known = {*source_of(there).places()}
        # Another process may have pushed it, or this one before its end; also those that the user removed there.
        done = [info for info in todo if place_of(info) in known or self._was_removed(there, info)]
        if done:
            self._note(name, done)
        rest = [info for info in todo if info not in done]
        # One at a time: what is saved meanwhile comes next, before what is older.
        if rest:
            self._push(name, rest[0])
        return True

    def _was_removed(self, there: object, info: CheckpointInfo) -> bool:
        return isinstance(there, Remote) and there.objects.head(place_of(info).dropped) is not None

    def _push(self, name: str, info: CheckpointInfo) -> None:
        context = self._context
        self._begin(info)
        bytes_s = setting_of(context.layout, MIRROR_BYTES_S)
        try:
            options: TransferOptions = {"bwlimit": bytes_s, "progress": self._progress}
            report = transfer.push(context, [info], name, options)
        except NoSuchRef:  # it was dropped meanwhile
            return
        except CkstoreError:
            self._failures[info.id] += 1
            raise
        self._note(name, [info])
        note(context, "mirrored", info.key, id=info.id, nbytes=report.moved_bytes, why=f"to {name}")

    def _note(self, name: str, done: list[CheckpointInfo]) -> None:
        here = {info.id for info in infos(self._context)}
        add_mirrored(self._context.layout, name, [info.id for info in done], here)
