"""One step of mirroring: find what the mirror lacks, and push the newest of it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.ops.config_file import KEEP_REMOTE, MIRROR, MIRROR_BYTES_S, policy_of, setting_of
from ckstore.ops.events import note
from ckstore.ops.mirrored import add_mirrored, behind, uuid_now
from ckstore.ops.refs.listing import infos
from ckstore.remote import transfer
from ckstore.remote.asking import look
from ckstore.remote.elsewhere.keep_local import keep_local
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.pruning.prune import GRACE_S, prune
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import OtherStore, reach, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.settings.retention_plan import Candidate
    from ckstore.ops.context import Context
    from ckstore.remote.choice import TransferOptions
    from ckstore.remote.keys import Place


# Each look at all that is there costs a listing: with one after each push it would cost more than the push.
_PRUNE_PAUSE_S = 600.0


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
        self._known: dict[Place, Candidate] = {}
        self._asked: set[str] = set()
        self._prune_again_s = 0.0

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
        uuid = uuid_now(self._context.layout, name)
        there = reach(self._context, name, writing=True)
        done = self._settled(there, todo)
        if done:
            self._note(name, uuid, done)
        rest = [info for info in todo if info not in done]
        # One at a time: what is saved meanwhile comes next, before what is older.
        if rest:
            self._push(name, uuid, rest[0])
            keep_local(self._context)
        return True

    def tidy(self) -> None:
        """Do what the two policies of the mirror say, if it is time to; to be called when nothing is left to push.

        Raises:
            CkstoreError: The mirror did not answer; another call tries again.
        """
        name, policy = self.name, policy_of(self._context.layout, KEEP_REMOTE)
        if name is None or time.monotonic() < self._prune_again_s:
            return
        keep_local(self._context)
        if policy is not None:
            there = reach(self._context, name, writing=True)
            KeepRemote(self._context, there, policy, self._known).apply()
            if isinstance(there, Remote) and there.cas:
                prune(there, self._context.algorithm, grace_s=GRACE_S)
        self._prune_again_s = time.monotonic() + _PRUNE_PAUSE_S

    def _settled(self, there: Remote | OtherStore, todo: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Return which need no push: another process pushed it, or this one before its end, or it was removed there."""
        if not isinstance(there, Remote):
            known = {*source_of(there).places()}
            return [info for info in todo if place_of(info) in known]
        # Each is asked for once, and the one that goes next once more: nothing else pushes what is saved here.
        new = [info for info in todo if info.id not in self._asked]
        new = new or todo[:1]
        self._asked.update(info.id for info in new)
        places = {info.id: place_of(info) for info in new}
        wanted = {key for place in places.values() for key in (place.manifest, place.dropped)}
        found = look(there.objects, wanted, len(self._asked))[0].keys()
        return [info for info in new if {places[info.id].manifest, places[info.id].dropped} & found]

    def _push(self, name: str, uuid: str, info: CheckpointInfo) -> None:
        context = self._context
        self._begin(info)
        bytes_s = setting_of(context.layout, MIRROR_BYTES_S)
        try:
            options: TransferOptions = {"bwlimit": bytes_s, "progress": self._progress}
            report = transfer.push(context, [info], name, options, lacks_all=True)
        except NoSuchRef:  # it was dropped meanwhile
            return
        except CkstoreError:
            self._failures[info.id] += 1
            raise
        self._note(name, uuid, [info])
        note(context, "mirrored", info.key, id=info.id, nbytes=report.moved_bytes, why=f"to {name}")

    def _note(self, name: str, uuid: str, done: list[CheckpointInfo]) -> None:
        here = {info.id for info in infos(self._context)}
        add_mirrored(self._context.layout, name, uuid, [info.id for info in done], here)
