"""One step of mirroring: find what the mirror lacks, and push the newest of it; then tags, pins and annotations."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InsufficientSpace, NoSuchRef, NoSuchRemote, RemoteUnavailable
from ckstore.model.digest import short_id
from ckstore.model.times import time_of_text
from ckstore.objects.documents.remote_only import holder_names_at
from ckstore.ops.config_file import KEEP_LOCAL, KEEP_REMOTE, MIRROR, MIRROR_BYTES_S, policy_of, setting_of
from ckstore.ops.events import note
from ckstore.ops.failures import OF_ALL, joined
from ckstore.ops.mirrored import add_mirrored, behind, note_looked, now, read_mirrored, uuid_now
from ckstore.ops.refs.listing import current_or_named
from ckstore.remote import transfer
from ckstore.remote.documents.claims import end_claims
from ckstore.remote.key_lookup import PAGE_ASKS, look
from ckstore.remote.metadata_sync import annotations_of, pins_of, tags_of
from ckstore.remote.mirror.ownership import Ownership
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.pruning.prune import GRACE_S, prune
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.evict import keep_local
from ckstore.remote.remote_only.listing import missing_at
from ckstore.remote.remote_only.lost_claims import claim_again
from ckstore.remote.remote_opener import named_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.settings.retention_plan import Candidate
    from ckstore.ops.context import Context
    from ckstore.remote.choice import TransferOptions
    from ckstore.remote.keys import Place
    from ckstore.remote.metadata_sync import MetadataObject


# Each look at all that is there costs a listing: with one after each push it would cost more than the push.
_PRUNE_PAUSE_S = 600.0
# A listing of all objects costs a request for each thousand.
_LOOK_AGAIN_S = 86_400.0
# After these nothing else would reach the mirror.
_OF_THE_MIRROR = (*OF_ALL, InsufficientSpace)
_TIDYING = frozenset({"claims", "keep_local", "keep_remote", "prune"})


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
        # What could not be pushed since `try_again`, by its name: it must not keep anything else back.
        self._failed: dict[str, CkstoreError] = {}
        self._known: dict[Place, Candidate] = {}
        self._ownership = Ownership(context)
        self._asked: set[str] = set()
        self._prune_again_s = 0.0
        # Of each checkpoint what it showed when its annotations were read: each look would read thousands of files.
        self._annotations: dict[str, tuple[object, list[MetadataObject]]] = {}

    @property
    def name(self) -> str | None:
        """The mirror, as the settings have it now."""
        return setting_of(self._context.layout, MIRROR)

    def todo(self) -> list[CheckpointInfo]:
        """Return what the mirror lacks as far as is known here, the newest first, without what failed."""
        name = self.name
        if name is None:
            return []
        lacking = behind(self._context.layout, name, current_or_named(self._context))
        return [info for info in lacking if self._failed.keys().isdisjoint({_item(info), _of_run(info.run)})]

    @property
    def problem(self) -> CkstoreError | None:
        """What could not be pushed since `try_again`, and why; None if nothing failed."""
        return joined(self._failed) if self._failed else None

    def try_again(self) -> None:
        """Let the next steps also do what failed before."""
        if not _TIDYING.isdisjoint(self._failed):
            self._prune_again_s = 0.0
        self._failed.clear()

    def has_work(self) -> bool:
        """Whether a step would do something; also where that cannot be known, since the step then says why."""
        try:
            name = self.name
            if name is None:
                return False
            return bool(self.todo()) or any(one.key not in self._failed for one in self._unsaid(name)[0])
        except CkstoreError:
            return True

    def step(self) -> bool:
        """Push the newest checkpoint that the mirror lacks, or metadata of those that it has.

        What fails for itself, such as a checkpoint that is damaged locally, is passed over: `problem` names it, and
        `try_again` lets another step push it.

        Returns:
            Whether something was pushed; if not, the mirror has everything, but for what failed.

        Raises:
            CkstoreError: The mirror did not take it, and would take nothing else; another step tries again.
        """
        while (name := self.name) is not None:
            uuid, todo = uuid_now(self._context.layout, name), self.todo()
            if not todo:
                return self._bring_said(name, uuid)
            there = named_remote(self._context, name)
            if done := self._settled(there, todo):
                # What was said of them follows: who pushed them may have been killed before it, or a prune ended that
                # push.
                self._note(name, uuid, done)
            rest = [info for info in todo if info not in done]
            # One at a time: what is saved meanwhile comes next, before what is older. Before it is pushed: what this
            # store saves later comes after all that the mirror has.
            if (
                rest
                and self._do(_of_run(rest[0].run), partial(self._own, there, rest[0]))
                and self._do(_item(rest[0]), partial(self._push, there, uuid, rest[0]))
            ):
                self._do("keep_local", partial(keep_local, self._context))
                done = rest[:1]
            if done:
                return True
        return False

    def _bring_said(self, name: str, uuid: str) -> bool:
        """Push some of the metadata that the mirror lacks as far as is known; return whether any was pushed."""
        while True:
            lacking, gone = self._unsaid(name)
            # Few at a time: a save that comes meanwhile goes before the rest.
            lacking = [one for one in lacking if one.key not in self._failed][:PAGE_ASKS]
            if not lacking:
                return False
            failed = transfer.push_metadata(self._context, name, lacking)
            self._failed |= failed
            done = {one.key: one.digest for one in lacking if one.key not in failed}
            if done:
                self._note(name, uuid, [], done, gone)
                return True

    def _unsaid(self, name: str) -> tuple[list[MetadataObject], set[str]]:
        """Return what was said of checkpoints that the mirror has and it was not given, and what is said no more."""
        known, here = read_mirrored(self._context.layout, name), current_or_named(self._context)
        there = {info.id for info in here if info.id in known.ids or info.elsewhere}
        self._annotations = {info.id: self._annotations[info.id] for info in here if info.id in self._annotations}
        said = self._said(here)
        lacking = [one for one in said if one.info.id in there and known.documents.get(one.key) != one.digest]
        return lacking, known.documents.keys() - {one.key for one in said}

    def _said(self, infos: list[CheckpointInfo]) -> list[MetadataObject]:
        """Return what was said of checkpoints."""
        said = [*tags_of(self._context, infos), *pins_of(self._context, infos)]
        for info in infos:
            shown = info.metrics, info.notes
            if not any(shown):
                continue
            if self._annotations.get(info.id, (None,))[0] != shown:
                own: list[MetadataObject] = []
                with suppress(CkstoreError):  # `verify` names it, and it keeps nothing else back
                    own += annotations_of(self._context, info)
                self._annotations[info.id] = shown, own
            said += self._annotations[info.id][1]
        return said

    def tidy(self) -> None:
        """Do what the two policies of the mirror say, if it is time to; to be called when nothing is left to push.

        One of them that fails for itself is named by `problem`, and stops neither the other nor the prune.

        Raises:
            CkstoreError: The mirror did not answer; another call tries again.
        """
        name, policy = self.name, policy_of(self._context.layout, KEEP_REMOTE)
        if name is not None:
            self._do("list", partial(self._look, name))
        if name is None or time.monotonic() < self._prune_again_s:
            return
        self._do("keep_local", partial(keep_local, self._context))
        lets_go = policy is not None or policy_of(self._context.layout, KEEP_LOCAL) is not None
        if not lets_go:  # no request where nothing may be left to do
            return
        there = named_remote(self._context, name)
        self._do("claims", partial(end_claims, self._context, there))
        if policy is not None:
            self._do("keep_remote", KeepRemote(self._context, there, policy, self._known).apply)
            if there.cas:
                self._do("prune", partial(prune, there, self._context.algorithm, grace_s=GRACE_S))
        self._prune_again_s = time.monotonic() + _PRUNE_PAUSE_S

    def _do(self, duty: str, work: Callable[[], object]) -> bool:
        """Do one duty of several; return whether it was done. An error that concerns it alone is kept for `problem`."""
        try:
            work()
        except _OF_THE_MIRROR:
            raise
        except CkstoreError as error:
            self._failed[duty] = error
            return False
        self._failed.pop(duty, None)
        return True

    def _look(self, name: str) -> None:
        """List what the mirror has, once a day: another program may have removed objects there."""
        context = self._context
        known = read_mirrored(context.layout, name)
        age_s = (now() - time_of_text(known.looked)).total_seconds() if known.looked else _LOOK_AGAIN_S
        here = current_or_named(context)
        if age_s < _LOOK_AGAIN_S:
            return
        had = [
            info
            for info in here
            if info.id in known.ids or name in holder_names_at(context.layout.checkpoint(info.key))
        ]
        if not had:
            return
        there = named_remote(context, name, writing=False)
        # First: other stores do not remove what is listed after it. Where the remote itself is gone, all is missing.
        with suppress(NoSuchRemote):
            claim_again(context, there)
        missing = missing_at(context, there, had)
        documents, _ = look(there.objects, known.documents, len(known.ids))
        note_looked(context.layout, name, missing, known.documents.keys() - documents)
        names = {info.id: info for info in had}
        for id, why in missing.items():
            note(context, "missing", names[id].key.run_step, id=id, why=f"{name}: {why}")

    def _settled(self, there: Remote, todo: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Return which need no push: another process pushed it, or this one before its end, or it was removed there."""
        mirrored = read_mirrored(self._context.layout, there.name)
        again = mirrored.missing.keys() | mirrored.pruned
        # Each is asked for once, and the one that goes next once more: nothing else pushes what is saved here.
        new = [info for info in todo if info.id not in self._asked]
        new = new or todo[:1]
        self._asked.update(info.id for info in new)
        places = {info.id: place_of(info) for info in new}
        wanted = {key for place in places.values() for key in (place.manifest, place.dropped)}
        found = look(there.objects, wanted, len(self._asked))[0].keys()
        # What lost a blob there is pushed again although its manifest is there; what the rule removed, although that is
        # marked there.
        new = [info for info in new if info.id not in again]
        return [info for info in new if {places[info.id].manifest, places[info.id].dropped} & found]

    def _own(self, there: Remote, info: CheckpointInfo) -> None:
        """Own the run of a checkpoint at the mirror, and know the order there."""
        self._ownership.own(there, info.run, info.sequence)

    def _push(self, there: Remote, uuid: str, info: CheckpointInfo) -> None:
        context, name = self._context, there.name
        self._begin(info)
        bytes_s = setting_of(context.layout, MIRROR_BYTES_S)
        # Before the push, which brings this or what is newer.
        said: list[MetadataObject] = []
        with suppress(CkstoreError):  # a pin that cannot be read is no reason to leave the checkpoint here
            said = self._said([info])
        try:
            options: TransferOptions = {"bwlimit": bytes_s, "progress": partial(self._say, there, info)}
            known = read_mirrored(context.layout, name)
            is_new = info.id not in known.missing.keys() | known.pruned
            report = transfer.push(context, [info], name, options, lacks_all=is_new)
        except NoSuchRef:  # it was dropped meanwhile
            return
        self._note(name, uuid, [info], {one.key: one.digest for one in said})
        note(context, "mirrored", info.key.run_step, id=info.id, nbytes=report.moved_bytes, why=f"to {name}")

    def _say(self, there: Remote, info: CheckpointInfo, done_bytes: int, all_bytes: int) -> None:
        """Say how far a push is, and stay the owner of its run: a large checkpoint takes longer than an owner lives."""
        with suppress(RemoteUnavailable):  # the push itself finds whether the mirror is away
            self._own(there, info)
        if self._progress is not None:
            self._progress(done_bytes, all_bytes)

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


def _of_run(run: str) -> str:
    """Return the name of a run among what failed: none of its checkpoints is pushed."""
    return f"run {run}"


def _item(info: CheckpointInfo) -> str:
    """Return the name of a checkpoint among what failed: a later save of its step is another one."""
    return f"{info.name} ({short_id(info.id)})"
