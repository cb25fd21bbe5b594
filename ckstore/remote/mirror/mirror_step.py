"""Mirroring step by step: push the newest checkpoint that the mirror lacks, then tags, pins and annotations."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InsufficientSpace, NoSuchRef, NoSuchRemote, RemoteUnavailable
from ckstore.model.digest import short_id
from ckstore.model.times import time_of_text
from ckstore.objects.checkpoints import holder_names_at
from ckstore.ops.config_file import KEEP_LOCAL, policy_of, setting_of
from ckstore.ops.events import note
from ckstore.ops.failures import joined
from ckstore.ops.mirror_record import (
    add_mirrored,
    behind,
    forget_copies,
    note_looked,
    note_missing,
    note_pruned,
    now,
    read_mirrored,
    uuid_now,
)
from ckstore.ops.mirror_settings import KEEP_REMOTE, MIRROR, MIRROR_BYTES_S
from ckstore.ops.refs.listing import current_or_named
from ckstore.remote import transfer
from ckstore.remote.documents.claims import end_claims
from ckstore.remote.documents.run_owner import read_owner
from ckstore.remote.key_lookup import PAGE_ASKS, look
from ckstore.remote.metadata_sync import annotations_of, pins_of, restored_at, tags_of
from ckstore.remote.mirror.ownership import Ownership
from ckstore.remote.objects import OF_ALL, Remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.pruning.prune import GRACE_S, prune
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.evict import keep_local
from ckstore.remote.remote_only.listing import Absent, absent_at, mark_lost
from ckstore.remote.remote_only.lost_claims import claim_again
from ckstore.remote.remote_opener import named_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.progress import Progress
    from ckstore.model.settings.retention_plan import Candidate
    from ckstore.ops.context import Context
    from ckstore.remote.choice import TransferOptions
    from ckstore.remote.keys import Place
    from ckstore.remote.metadata_sync import MetadataObject


# The minimum time between two prunes. A prune lists all blobs of the mirror. If it ran after each push, it would cost
# more than the push.
_PRUNE_PAUSE_S = 600.0
# The time between two listings of all objects. Each takes one request per thousand objects.
_LOOK_AGAIN_S = 86_400.0
# After one of these errors, no other push to the mirror would succeed.
_OF_THE_MIRROR = (*OF_ALL, InsufficientSpace)
_TIDYING = frozenset({"claims", "keep_local", "keep_remote", "prune"})


class Mirror:
    """Mirrors a store in one process.

    Args:
        context: The store.
        begin: Called with each checkpoint before it is pushed.
        progress: As in `ckstore.Store.push`.
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
        # Errors since `try_again`, by the name of the failed item. A failed item must not block the others.
        self._failed: dict[str, CkstoreError] = {}
        self._known: dict[Place, Candidate] = {}
        self._ownership = Ownership(context)
        self._asked: set[str] = set()
        self._prune_again_s = 0.0
        # Id of a checkpoint -> its metrics and notes when its annotations were last read, and these annotations. This
        # avoids reading thousands of files each time.
        self._annotations: dict[str, tuple[object, list[MetadataObject]]] = {}

    @property
    def name(self) -> str | None:
        """The name of the mirror in the current settings, or None."""
        return setting_of(self._context.layout, MIRROR)

    def todo(self) -> list[CheckpointInfo]:
        """Return the checkpoints that the mirror lacks according to local records, newest first, except failed ones."""
        name = self.name
        if name is None:
            return []
        lacking = behind(self._context.layout, name, current_or_named(self._context))
        return [info for info in lacking if self._failed.keys().isdisjoint({_item(info), _run_item(info.run)})]

    @property
    def problem(self) -> CkstoreError | None:
        """The errors of all items that failed since `try_again`, as one error, or None if nothing failed."""
        return joined(self._failed) if self._failed else None

    def try_again(self) -> None:
        """Clear all failures, so that the next steps retry them."""
        if not _TIDYING.isdisjoint(self._failed):
            self._prune_again_s = 0.0
        self._failed.clear()

    def has_work(self) -> bool:
        """Whether a step has work to do. If this is unknown, the result is True, and the step raises the reason."""
        try:
            name = self.name
            if name is None:
                return False
            return bool(self.todo()) or any(one.key not in self._failed for one in self._missing_metadata(name)[0])
        except CkstoreError:
            return True

    def step(self) -> bool:
        """Push the newest checkpoint that the mirror lacks, or, if it lacks none, metadata of its checkpoints.

        An item that cannot be pushed, such as a damaged checkpoint, is skipped. `problem` names it, and `try_again`
        lets a later step retry it.

        Returns:
            Whether something was pushed. If not, the mirror has everything except the items that failed.

        Raises:
            CkstoreError: The mirror refused the push, and would refuse any other. The next step tries again.
        """
        while (name := self.name) is not None:
            uuid, todo = uuid_now(self._context.layout, name), self.todo()
            if not todo:
                return self._push_missing_metadata(name, uuid)
            there = named_remote(self._context, name)
            done, removed = self._needing_no_push(there, todo)
            done += removed
            if done:
                # Their metadata is pushed later. The process that pushed the checkpoints may have been killed before it
                # pushed the metadata, or a prune may have completed the push.
                self._note(name, uuid, done, removed=[info.id for info in removed])
            rest = [info for info in todo if info not in done]
            # Checkpoints are pushed one at a time, so that a newer save is pushed before older ones. This store becomes
            # the owner of the run before the push, so that its later saves follow all checkpoints on the mirror in
            # commit order.
            if (
                rest
                and self._run_duty(_run_item(rest[0].run), partial(self._own_run, there, rest[0]))
                and self._run_duty(_item(rest[0]), partial(self._push, there, uuid, rest[0]))
            ):
                self._run_duty("keep_local", partial(keep_local, self._context))
                done = rest[:1]
            if done:
                return True
        return False

    def _push_missing_metadata(self, name: str, uuid: str) -> bool:
        """Push some metadata that the mirror lacks according to local records. Return whether any was pushed."""
        while True:
            lacking, gone = self._missing_metadata(name)
            # Few objects are pushed at a time, so that a checkpoint that is saved meanwhile is pushed before the rest.
            lacking = [one for one in lacking if one.key not in self._failed][:PAGE_ASKS]
            if not lacking:
                return False
            pushed = transfer.push_metadata(self._context, name, lacking)
            self._failed |= pushed.failed
            local = {one.info.id: one.info for one in lacking if not one.info.elsewhere}
            missing = dict.fromkeys(pushed.missing & local.keys(), "it is missing")
            pruned = self._decided_again(name, pushed.removed, local)
            again = missing.keys() | pruned  # a push of these checkpoints includes their metadata
            sent = (one for one in lacking if one.key not in pushed.failed and one.info.id not in again)
            done = {one.key: one.digest for one in sent}
            if missing:
                note_missing(self._context.layout, name, missing)
            if pruned:
                note_pruned(self._context.layout, name, pruned)
            if done:
                self._note(name, uuid, [], done, gone, removed=pushed.removed & local.keys() - pruned)
            if done or again:
                return True

    def _missing_metadata(self, name: str) -> tuple[list[MetadataObject], set[str]]:
        """Return the metadata that the mirror lacks for its checkpoints, and the keys of metadata removed locally."""
        known, here = read_mirrored(self._context.layout, name), current_or_named(self._context)
        there = {info.id for info in here if info.id in known.ids or info.elsewhere}
        self._annotations = {info.id: self._annotations[info.id] for info in here if info.id in self._annotations}
        said = self._metadata_of(here)
        lacking = [one for one in said if one.info.id in there and known.documents.get(one.key) != one.digest]
        return lacking, known.documents.keys() - {one.key for one in said}

    def _metadata_of(self, infos: list[CheckpointInfo]) -> list[MetadataObject]:
        """Return the metadata of checkpoints."""
        said = [*tags_of(self._context, infos), *pins_of(self._context, infos)]
        for info in infos:
            shown = info.metrics, info.notes
            if not any(shown):
                continue
            if self._annotations.get(info.id, (None,))[0] != shown:
                own: list[MetadataObject] = []
                with suppress(CkstoreError):  # `verify` reports this error, which must not block the other metadata
                    own += annotations_of(self._context, info)
                self._annotations[info.id] = shown, own
            said += self._annotations[info.id][1]
        return said

    def tidy(self) -> None:
        """List the mirror, apply the policies `keep_local` and `keep_remote`, and prune, each if it is due.

        Call this when everything has been pushed. If a policy fails, `problem` names it, and the other policy and the
        prune still run.

        Raises:
            CkstoreError: The mirror did not answer. A later call tries again.
        """
        name, policy = self.name, policy_of(self._context.layout, KEEP_REMOTE)
        if name is not None:
            self._run_duty("list", partial(self._look, name))
        if name is None or time.monotonic() < self._prune_again_s:
            return
        self._run_duty("keep_local", partial(keep_local, self._context))
        lets_go = policy is not None or policy_of(self._context.layout, KEEP_LOCAL) is not None
        if not lets_go:  # without a policy there is nothing to do, so no request is made
            return
        there = named_remote(self._context, name)
        self._run_duty("claims", partial(end_claims, self._context, there))
        if policy is not None:
            self._run_duty("keep_remote", KeepRemote(self._context, there, policy, self._known).apply)
            if there.cas:
                self._run_duty("prune", partial(prune, there, self._context.algorithm, grace_s=GRACE_S))
        self._prune_again_s = time.monotonic() + _PRUNE_PAUSE_S

    def _run_duty(self, duty: str, work: Callable[[], object]) -> bool:
        """Run a duty, and return whether it succeeded. Record an error that concerns only this duty."""
        try:
            work()
        except _OF_THE_MIRROR:
            raise
        except CkstoreError as error:
            if isinstance(error, NoSuchRemote):
                # The mirror was removed, or it is not mounted. Retention must not rely on the copies that it had.
                self._asked.clear()
                forget_copies(self._context.layout, self.name or "")
            self._failed[duty] = error
            return False
        self._failed.pop(duty, None)
        return True

    def _look(self, name: str) -> None:
        """List the objects of the mirror once a day, since another program may have deleted some."""
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
        # Claims are restored first, because other stores keep claimed checkpoints. If the remote no longer exists,
        # everything counts as missing, but not as lost: its filesystem may not be mounted. This also holds if it lost
        # only its description, since no store can then read or write its other objects.
        exists = True
        try:
            claim_again(context, there)
            absent = absent_at(context, there, had)
        except NoSuchRemote as error:
            exists, absent = False, Absent({info.id: error.message for info in had})
        if exists:
            only_there = [
                info
                for info in had
                if info.elsewhere and holder_names_at(context.layout.checkpoint(info.key)) == (name,)
            ]
            whole = {info.id for info in only_there} - absent.missing.keys()
            mark_lost(context, only_there, {id: f"{name}: {why}" for id, why in absent.missing.items()}, whole)
        documents, _ = look(there.objects, known.documents, len(known.ids))
        lost = (known.documents.keys() - documents) | restored_at(context, there, documents)
        names = {info.id: info for info in had}
        pruned = self._decided_again(name, absent.removed, names)
        note_looked(context.layout, name, absent.missing, lost, pruned=pruned, removed=absent.removed - pruned)
        for id, why in absent.missing.items():
            note(context, "missing", names[id].key.run_step, id=id, why=f"{name}: {why}")

    def _decided_again(self, name: str, removed: Iterable[str], infos: Mapping[str, CheckpointInfo]) -> set[str]:
        """Return the ids of removed checkpoints that `keep_remote` decides about again. The others remain removed.

        That policy decides only about runs that this store mirrors.
        """
        if policy_of(self._context.layout, KEEP_REMOTE) is None:
            return set()
        runs = read_mirrored(self._context.layout, name).sequences
        return {id for id in removed if id in infos and infos[id].run in runs}

    def _note_removed(self, there: Remote, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Record the checkpoints that were removed from the mirror and that this store decides about again.

        Return the others, which remain removed.
        """
        # The record lacks the runs if it is new, and the removed checkpoints if they were not listed for some time,
        # such as before an undo. The mirror has both.
        known, own = read_mirrored(self._context.layout, there.name).sequences, self._context.settings.uuid
        runs = {info.run for info in infos}
        owners = {run: read_owner(there.objects, run) for run in runs - known.keys()}
        mirrored = {run for run in runs if run in known or ((found := owners[run]) and found[0].store == own)}
        again = {info.id for info in infos if info.run in mirrored}
        if again:
            note_pruned(self._context.layout, there.name, again)
        return [info for info in infos if info.id not in again]

    def _needing_no_push(
        self, there: Remote, todo: list[CheckpointInfo]
    ) -> tuple[list[CheckpointInfo], list[CheckpointInfo]]:
        """Return the checkpoints that need no push, according to the remote.

        Those in the first list were pushed by another process, or before a restart of this one. Those in the second
        list were removed from the remote.
        """
        missing = read_mirrored(self._context.layout, there.name).missing
        # Each checkpoint is looked up once, and once more when it is the next to push. That is enough, because normally
        # no other process pushes the saves of this store.
        new = [info for info in todo if info.id not in self._asked]
        new = new or todo[:1]
        self._asked.update(info.id for info in new)
        places = {info.id: place_of(info) for info in new}
        wanted = {key for place in places.values() for key in (place.manifest, place.dropped)}
        found = look(there.objects, wanted, len(self._asked))[0].keys()
        # A checkpoint that lost a blob is pushed again although its manifest exists on the remote.
        new = [info for info in new if info.id not in missing]
        removed = [info for info in new if places[info.id].dropped in found]
        pushed = [info for info in new if info not in removed and places[info.id].manifest in found]
        return pushed, self._note_removed(there, removed)

    def _own_run(self, there: Remote, info: CheckpointInfo) -> None:
        """Become or remain the owner of the run of a checkpoint on the mirror."""
        self._ownership.own(there, info.run, info.sequence)

    def _push(self, there: Remote, uuid: str, info: CheckpointInfo) -> None:
        context, name = self._context, there.name
        self._begin(info)
        bytes_s = setting_of(context.layout, MIRROR_BYTES_S)
        # The metadata is read before the push, which then pushes the same or newer metadata.
        said: list[MetadataObject] = []
        with suppress(CkstoreError):  # an unreadable pin must not prevent the push of the checkpoint
            said = self._metadata_of([info])
        try:
            options: TransferOptions = {"bwlimit": bytes_s, "progress": partial(self._report_progress, there, info)}
            known = read_mirrored(context.layout, name)
            is_new = info.id not in known.missing.keys() | known.pruned
            report = transfer.push(context, [info], name, options, lacks_all=is_new)
        except NoSuchRef:  # it was dropped meanwhile
            return
        self._note(name, uuid, [info], {one.key: one.digest for one in said})
        note(context, "mirrored", info.key.run_step, id=info.id, nbytes=report.moved_bytes, why=f"to {name}")

    def _report_progress(self, there: Remote, info: CheckpointInfo, done_bytes: int, all_bytes: int) -> None:
        """Report progress, and remain the owner of the run, since a large push can take longer than ownership lasts."""
        with suppress(RemoteUnavailable):  # the push itself fails if the mirror is unavailable
            self._own_run(there, info)
        if self._progress is not None:
            self._progress(done_bytes, all_bytes)

    def _note(
        self,
        name: str,
        uuid: str,
        done: list[CheckpointInfo],
        documents: Mapping[str, str] = MappingProxyType({}),
        gone: Container[str] = (),
        *,
        removed: Collection[str] = (),
    ) -> None:
        here, ids = current_or_named(self._context), [info.id for info in done]
        add_mirrored(
            self._context.layout,
            name,
            uuid,
            ids=ids,
            here=here,
            documents=documents,
            gone=gone,
            removed=removed,
            sequences=self._ownership.sequences,
        )


def _run_item(run: str) -> str:
    """Return the name under which the failure of a whole run is recorded."""
    return f"run {run}"


def _item(info: CheckpointInfo) -> str:
    """Return the name under which a failed checkpoint is recorded. It has the id, since a step may be saved again."""
    return f"{info.name} ({short_id(info.id)})"
