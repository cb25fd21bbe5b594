"""One step of mirroring: find what the mirror lacks, and push the newest of it; then tags, pins and annotations."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.model.times import time_of_text
from ckstore.objects.documents.elsewhere import holders_at
from ckstore.ops.config_file import KEEP_LOCAL, KEEP_REMOTE, MIRROR, MIRROR_BYTES_S, policy_of, setting_of
from ckstore.ops.events import note
from ckstore.ops.mirrored import add_mirrored, behind, note_looked, now, read_mirrored, uuid_now
from ckstore.ops.refs.listing import current_or_named
from ckstore.remote import transfer
from ckstore.remote.asking import PAGE_ASKS, look
from ckstore.remote.beside import annotations_of, pins_of, tags_of
from ckstore.remote.documents.claims import end_claims
from ckstore.remote.elsewhere.evict import keep_local
from ckstore.remote.elsewhere.listing import missing_at
from ckstore.remote.mirror.ownership import Ownership, learn_order
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.pruning.prune import GRACE_S, prune
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import OtherStore, reach, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.settings.retention_plan import Candidate
    from ckstore.ops.context import Context
    from ckstore.remote.beside import Said
    from ckstore.remote.choice import TransferOptions
    from ckstore.remote.keys import Place


# Each look at all that is there costs a listing: with one after each push it would cost more than the push.
_PRUNE_PAUSE_S = 600.0
# A listing of all objects costs a request for each thousand.
_LOOK_AGAIN_S = 86_400.0
_SAID = "said"  # counts as one checkpoint among those that failed; no id has this form


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
        self._ownership = Ownership(context)
        self._knows_order = False
        self._asked: set[str] = set()
        self._prune_again_s = 0.0
        # Of each checkpoint what it showed when its annotations were read: each look would read thousands of files.
        self._annotations: dict[str, tuple[object, list[Said]]] = {}

    @property
    def name(self) -> str | None:
        """The mirror, as the settings have it now."""
        return setting_of(self._context.layout, MIRROR)

    def todo(self) -> list[CheckpointInfo]:
        """Return what the mirror lacks as far as is known here, the newest first; what fails comes last."""
        name = self.name
        if name is None:
            return []
        lacking = behind(self._context.layout, name, current_or_named(self._context))
        return sorted(lacking, key=lambda info: self._failures[info.id])  # stable: else the newest first

    def has_work(self) -> bool:
        """Whether a step would do something; also where that cannot be known, since the step then says why."""
        try:
            name = self.name
            return name is not None and bool(self.todo() or self._unsaid(name)[0])
        except CkstoreError:
            return True

    def step(self) -> bool:
        """Push the newest checkpoint that the mirror lacks, or what was said of those that it has; False: it has all.

        Raises:
            CkstoreError: It could not be pushed; another step tries again.
        """
        name, todo = self.name, self.todo()
        if name is None:
            return False
        uuid = uuid_now(self._context.layout, name)
        # Checkpoints first; but one that fails again and again must not keep back what was said of the others.
        is_next = not todo or self._failures[_SAID] < self._failures[todo[0].id]
        if is_next and self._bring_said(name, uuid):
            return True
        if not todo:
            return False
        there = reach(self._context, name, writing=True)
        done = self._settled(there, todo)
        if done:
            # What was said of them follows: who pushed them may have been killed before it, or a prune ended that push.
            self._note(name, uuid, done)
        rest = [info for info in todo if info not in done]
        # One at a time: what is saved meanwhile comes next, before what is older.
        if rest:
            self._push(there, uuid, rest[0])
            keep_local(self._context)
        return True

    def _bring_said(self, name: str, uuid: str) -> bool:
        """Bring some of what was said since; False: the mirror has all of it as far as is known."""
        lacking, gone = self._unsaid(name)
        # Few at a time: a save that comes meanwhile goes before the rest.
        lacking = sorted(lacking, key=lambda one: self._failures[one.key])[:PAGE_ASKS]
        if not lacking:
            return False
        try:
            transfer.push_said(self._context, name, lacking)
        except CkstoreError:
            self._failures.update([_SAID, *(one.key for one in lacking)])
            raise
        self._note(name, uuid, [], {one.key: one.digest for one in lacking}, gone)
        return True

    def _unsaid(self, name: str) -> tuple[list[Said], set[str]]:
        """Return what was said of checkpoints that the mirror has and it was not given, and what is said no more."""
        known, here = read_mirrored(self._context.layout, name), current_or_named(self._context)
        there = {info.id for info in here if info.id in known.ids or info.elsewhere}
        self._annotations = {info.id: self._annotations[info.id] for info in here if info.id in self._annotations}
        said = self._said(here)
        lacking = [one for one in said if one.info.id in there and known.documents.get(one.key) != one.digest]
        return lacking, known.documents.keys() - {one.key for one in said}

    def _said(self, infos: list[CheckpointInfo]) -> list[Said]:
        """Return what was said of checkpoints."""
        said = [*tags_of(self._context, infos), *pins_of(self._context, infos)]
        for info in infos:
            shown = info.metrics, info.notes
            if not any(shown):
                continue
            if self._annotations.get(info.id, (None,))[0] != shown:
                own: list[Said] = []
                with suppress(CkstoreError):  # `verify` names it, and it keeps nothing else back
                    own += annotations_of(self._context, info)
                self._annotations[info.id] = shown, own
            said += self._annotations[info.id][1]
        return said

    def tidy(self) -> None:
        """Do what the two policies of the mirror say, if it is time to; to be called when nothing is left to push.

        Raises:
            CkstoreError: The mirror did not answer; another call tries again.
        """
        name, policy = self.name, policy_of(self._context.layout, KEEP_REMOTE)
        if name is not None:
            self._look(name)
        if name is None or time.monotonic() < self._prune_again_s:
            return
        keep_local(self._context)
        lets_go = policy is not None or policy_of(self._context.layout, KEEP_LOCAL) is not None
        if not lets_go:  # no request where nothing may be left to do
            return
        there = reach(self._context, name, writing=True)
        if isinstance(there, Remote):
            end_claims(self._context, there)
        if policy is not None:
            KeepRemote(self._context, there, policy, self._known).apply()
            if isinstance(there, Remote) and there.cas:
                prune(there, self._context.algorithm, grace_s=GRACE_S)
        self._prune_again_s = time.monotonic() + _PRUNE_PAUSE_S

    def _look(self, name: str) -> None:
        """List what the mirror has, once a day: another program may have removed objects there."""
        context = self._context
        known = read_mirrored(context.layout, name)
        age_s = (now() - time_of_text(known.looked)).total_seconds() if known.looked else _LOOK_AGAIN_S
        here = current_or_named(context)
        if age_s < _LOOK_AGAIN_S:
            return
        had = [info for info in here if info.id in known.ids or name in holders_at(context.layout.checkpoint(info.key))]
        if not had:
            return
        missing = missing_at(context, reach(context, name), had)
        note_looked(context.layout, name, missing)
        names = {info.id: info for info in had}
        for id, why in missing.items():
            note(context, "missing", names[id].key.run_step, id=id, why=f"{name}: {why}")

    def _settled(self, there: Remote | OtherStore, todo: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Return which need no push: another process pushed it, or this one before its end, or it was removed there."""
        if not isinstance(there, Remote):
            known = {*source_of(there).places()}
            return [info for info in todo if place_of(info) in known]
        lost = read_mirrored(self._context.layout, there.name).missing
        # Each is asked for once, and the one that goes next once more: nothing else pushes what is saved here.
        new = [info for info in todo if info.id not in self._asked]
        new = new or todo[:1]
        self._asked.update(info.id for info in new)
        places = {info.id: place_of(info) for info in new}
        wanted = {key for place in places.values() for key in (place.manifest, place.dropped)}
        found = look(there.objects, wanted, len(self._asked))[0].keys()
        # What lost a blob there is pushed again although its manifest is there.
        new = [info for info in new if info.id not in lost]
        return [info for info in new if {places[info.id].manifest, places[info.id].dropped} & found]

    def _push(self, there: Remote | OtherStore, uuid: str, info: CheckpointInfo) -> None:
        context, name = self._context, there.name
        self._begin(info)
        bytes_s = setting_of(context.layout, MIRROR_BYTES_S)
        # Before the push, which brings this or what is newer.
        said: list[Said] = []
        with suppress(CkstoreError):  # a pin that cannot be read is no reason to leave the checkpoint here
            said = self._said([info])
        try:
            options: TransferOptions = {"bwlimit": bytes_s, "progress": self._progress}
            own = read_mirrored(context.layout, name).ids
            # Before it is brought: what this store saves later comes after all that the mirror has.
            if isinstance(there, Remote):
                self._ownership.own(there, info.run, info.sequence)
            elif not self._knows_order:
                learn_order(context, there)
                self._knows_order = True
            is_new = info.id not in read_mirrored(context.layout, name).missing
            report = transfer.push(context, [info], name, options, lacks_all=is_new, own=own)
        except NoSuchRef:  # it was dropped meanwhile
            return
        except CkstoreError:
            self._failures[info.id] += 1
            raise
        self._note(name, uuid, [info], {one.key: one.digest for one in said})
        note(context, "mirrored", info.key.run_step, id=info.id, nbytes=report.moved_bytes, why=f"to {name}")

    def _note(
        self,
        name: str,
        uuid: str,
        done: list[CheckpointInfo],
        documents: Mapping[str, str] = MappingProxyType({}),
        gone: Container[str] = (),
    ) -> None:
        here, ids = current_or_named(self._context), [info.id for info in done]
        add_mirrored(self._context.layout, name, uuid, ids=ids, here=here, documents=documents, gone=gone)
