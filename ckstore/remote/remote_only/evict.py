"""Evict: free local bytes that a remote has. The checkpoint stays listed, and its bytes are downloaded when read.

No bytes are freed before the remote has them and keeps them. First, ``elsewhere.json`` is made durable.
Then the checkpoint is claimed on the remote, so that no store deletes it there. After that, every blob is verified:
this store has sent it in a request whose body the service checks, or has read it back, and the remote still lists that
version. Finally, under an exclusive lock, one rename moves ``blobs/`` to the trash, and the collector frees blobs that
no other checkpoint uses. A compacted checkpoint is instead published in its plain form without blobs, and its encoded
directory is moved to the trash. A kill at any point leaves a checkpoint that can still be read. Source:
docs/format/remote-v1.md, "Evict".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from uuid import uuid4

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef, RemoteError
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.locks import DirectoryLock
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, Manifest
from ckstore.model.remote.remote_only import RemoteHolder, RemoteOnly
from ckstore.model.remote.transfer import EvictReport
from ckstore.model.reports.retention_report import Skipped
from ckstore.model.settings import settings
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.model.times import text_of_time
from ckstore.objects import store_locks, trash
from ckstore.objects.checkpoints import id_at, judge_blobs, key_with_id
from ckstore.objects.documents import marks
from ckstore.objects.generations import publish_generation
from ckstore.objects.layout import BLOBS, PLAIN
from ckstore.objects.remote.remote_only import (
    read_remote_only,
    remove_remote_only,
    stage_remote_only,
    touch,
    write_remote_only,
)
from ckstore.objects.staging import Staging
from ckstore.ops.config_file import KEEP_LOCAL, policy_of, setting_of
from ckstore.ops.context import Context
from ckstore.ops.events import note
from ckstore.ops.failures import failure_of, joined
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import make_kept_durable
from ckstore.ops.free.gc_plan import freed_in_turn
from ckstore.ops.free.retain import plan_among
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.mirror_record import behind, not_yet
from ckstore.ops.mirror_settings import MIRROR
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import infos
from ckstore.ops.refs.protection import gone
from ckstore.ops.requires import require
from ckstore.remote.documents.remote_info import read_info
from ckstore.remote.objects import OF_ALL, Remote
from ckstore.remote.push import TransferLimits
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.remote_presence import PresenceCheck
from ckstore.remote.remote_opener import named_remote

_RUN_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Eviction:
    """The eviction of one checkpoint.

    Attributes:
        info: The checkpoint.
        manifest: Its manifest.
        holder: The remote that has its blobs, with the uuid of the claim.
    """

    info: CheckpointInfo
    manifest: Manifest
    holder: RemoteHolder


def evict(
    context: Context,
    infos: Sequence[CheckpointInfo],
    remote: Remote,
    *,
    dry_run: bool = False,
    why: Mapping[str, str] = MappingProxyType({}),
) -> EvictReport:
    """Free the local blobs of checkpoints that a remote has; see `ckstore.Store.evict`.

    If one checkpoint fails, the others are still evicted. The error at the end names each failure.

    Args:
        context: The store.
        infos: The checkpoints.
        remote: The remote that has them.
        dry_run: Change nothing, and report what would be freed.
        why: The reasons of evictions for the journal, by checkpoint name. The default of each is "by hand".
    """
    if not dry_run:
        context.check_writable()
        # An older version of ckstore would consider a checkpoint without blobs torn. So this entry, which makes older
        # versions refuse the store, is written before the first blob is freed.
        require(context, settings.ELSEWHERE)
    uuid, attest = read_info(remote.objects, remote.name).uuid, PresenceCheck(context, remote, TransferLimits())
    evicted: list[CheckpointInfo] = []
    skipped: list[Skipped] = []
    failures: dict[str, CkstoreError] = {}
    digests: dict[str, int] = {}
    going: list[Eviction] = []
    try:
        for info in infos:
            step = partial(_begin, context, info, remote, uuid, attest, going, dry_run=dry_run)
            _has_succeeded(step, info, skipped, failures)
        # Claim all checkpoints before checking any. Until a checkpoint is claimed, another store may delete its bytes
        # from the remote, so an earlier check proves nothing.
        if not dry_run:
            attest.claim([(place_of(one.info), one.holder.claim, one.manifest.blobs) for one in going])
        for one in [*going]:
            step = partial(_evict_one, context, one, attest, dry_run=dry_run)
            if not _has_succeeded(step, one.info, skipped, failures):
                continue
            going.remove(one)
            evicted.append(one.info)
            if not dry_run:
                digests.update((file.digest, file.nbytes) for file in one.manifest.stored)
                reason = why.get(one.info.name, "by hand")
                note(context, "evicted", one.info.key.run_step, id=one.info.id, why=f"{remote.name} has it; {reason}")
    finally:
        # This also runs after an error. The next eviction then does not read the same blobs back again, and checkpoints
        # that kept all their bytes are no longer recorded as evicted.
        if not dry_run:
            for one in going:
                with suppress(CkstoreError, OSError):  # a record that remains only names one more remote to read from
                    _withdraw(context, one, attest)
            with suppress(CkstoreError, OSError):  # the record only saves work, and must not hide the first error
                attest.keep()
            reclaim.free_unused(context, digests)
    if failures:
        raise joined(failures)
    if dry_run:
        gone = freed_in_turn(context, (context.layout.checkpoint(info.key) for info in evicted))
        freed_bytes = sum(nbytes for blobs in gone for _, nbytes in blobs)
    else:
        left = (digest for digest in digests if not dirfd_stat.exists(context.layout.blob(digest)))
        freed_bytes = sum(digests[digest] for digest in left)
    return EvictReport(
        remote.name,
        dry_run,
        tuple(evicted),
        tuple(skipped),
        freed_bytes,
        attest.read_back_bytes,
    )


def _has_succeeded(
    step: Callable[[], str], info: CheckpointInfo, skipped: list[Skipped], failures: dict[str, CkstoreError]
) -> bool:
    """Run a step of an eviction, and return whether it succeeded. A failure is recorded, and the others continue."""
    try:
        problem = step()
    except (NoSuchRef, DamagedBlob, InUse) as error:  # dropped meanwhile, or unreadable
        problem = error.message
    except OF_ALL:  # the remaining evictions would also fail
        raise
    except (CkstoreError, OSError) as error:
        failures[info.name] = failure_of(f"evicting {info.name}", error)
        return False
    if problem:
        skipped.append(Skipped(info, problem))
    return not problem


def _begin(  # noqa: PLR0917
    context: Context,
    info: CheckpointInfo,
    remote: Remote,
    uuid: str,
    attest: PresenceCheck,
    going: list[Eviction],
    *,
    dry_run: bool,
) -> str:
    """Record in the directory of a checkpoint that a remote has it, and append its eviction to `going`.

    Returns:
        The reason why the checkpoint keeps its bytes, or "" if it can be evicted.
    """
    with open_directory(context, info) as directory:
        manifest = directory.manifest
        judged = judge_blobs(directory.lock.inside, directory.lock.fd, manifest)
        if judged.problem or marks.read_mark(directory.lock.fd) is not None:
            return judged.problem or "it is marked as damaged: verify it first"
        if not manifest.stored or len(judged.elsewhere) == len(manifest.stored):
            return "it has no local bytes"
    try:
        if not attest.finds(place_of(info)):
            return f"{remote.name} does not have it"
    except RemoteError as error:
        return error.message
    one = Eviction(info, manifest, RemoteHolder(uuid, remote.name, uuid4().hex))
    if not dry_run:
        say_elsewhere(context, one)
    going.append(one)
    return ""


def say_elsewhere(context: Context, one: Eviction) -> None:
    """Record in the directory of a checkpoint that a remote has it, before the checkpoint is claimed there."""
    # The file is written before the claim, because a process that ends claims lists the claims before it reads this
    # file.
    with alone(context, one.info) as lock:
        before = read_remote_only(lock.fd)
        had = () if before is None else before.remotes
        # If the file already names a claim on this remote, that claim is used again.
        claim = next((holder.claim for holder in had if holder.uuid == one.holder.uuid), "")
        one.holder = replace(one.holder, claim=claim or one.holder.claim)
        since = text_of_time(datetime.now(UTC)) if before is None else before.since
        others = (holder for holder in had if holder.uuid != one.holder.uuid)
        write_remote_only(context.layout, lock, RemoteOnly(since, (*others, one.holder)))


def _withdraw(context: Context, one: Eviction, attest: PresenceCheck) -> None:
    """If a checkpoint kept all its local bytes, remove the record that a remote has it, and end its claim."""
    # If the plain form of a compacted checkpoint was already published, that form relies on the claim.
    if key_with_id(context.layout, *place_of(one.info)) != one.info.key:
        return
    with alone(context, one.info) as lock:
        document = read_remote_only(lock.fd)
        if document is None or document.remotes != (one.holder,):  # other remotes had it before
            return
        here = {*trash.names_in(lock.inside / BLOBS)}
        if not here.issuperset(file.digest for file in one.manifest.stored):
            return
        remove_remote_only(lock)
    attest.end_claim(place_of(one.info), one.holder.claim)


def _evict_one(context: Context, one: Eviction, attest: PresenceCheck, *, dry_run: bool) -> str:
    """Free the bytes of one checkpoint. Return the reason why it keeps them, or "" if they were freed."""
    try:
        problem = attest.lacks(place_of(one.info), one.manifest.blobs, read=not dry_run)
    except RemoteError as error:
        return error.message
    if problem:
        return problem
    if dry_run:
        return _in_use(one.info).message if locks.is_locked(context.layout.checkpoint(one.info.key)) else ""
    make_kept_durable(context, one.info.run)
    return _free_bytes(context, one) if one.manifest.form.is_plain else _free_compacted(context, one)


@contextmanager
def alone(context: Context, info: CheckpointInfo) -> Iterator[DirectoryLock]:
    """Lock the run and then the checkpoint exclusively. Saves also lock the run first."""
    layout = context.layout
    path = layout.checkpoint(info.key)
    with ExitStack() as held:
        run_lock = held.enter_context(store_locks.lock_run(layout, info.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S))
        lock = locks.try_exclusive(path)
        if lock is None and not dirfd_stat.is_directory(path):
            raise gone(info)
        if lock is None:
            raise _in_use(info)
        held.enter_context(lock)
        if id_at(path) != info.id or not lock.names(path):
            raise gone(info)
        run_lock.check()
        yield lock


def _in_use(info: CheckpointInfo) -> InUse:
    return InUse(f"{info.name} is open for reading", hint="close it, then evict again")


def _free_bytes(context: Context, one: Eviction) -> str:
    layout, info = context.layout, one.info
    path = layout.checkpoint(info.key)
    with alone(context, info) as lock:
        _check_claimed(one, lock)
        # The manifest is touched both before and after the rename. If it were touched only afterwards, and the process
        # were killed before that, rows of the catalog would still count the blobs, and gc would never free them.
        touch(lock)
        # One rename moves all blobs, so the directory has either all blobs, or none and a document that names the
        # remotes with the blobs.
        target = trash.free_name(layout.trash, f"{info.run}@{info.key.directory}")
        links.rename(path / BLOBS, target)
        links.make_directory(path / BLOBS)
        # The new parent is synced first (law N4). Only then may the collector unlink anything below it (law T2).
        files.sync_directory(layout.trash)
        files.sync_open_directory(lock.fd)
        touch(lock)
    update_row(context, info.key)
    return ""


def _check_claimed(one: Eviction, lock: DirectoryLock) -> RemoteOnly:
    """Return the remotes of a locked checkpoint. Raise `InUse` if they no longer include the claim of the eviction."""
    document = read_remote_only(lock.fd)
    if document is None or one.holder not in document.remotes:
        raise InUse("another process is evicting it")
    return document


def _free_compacted(context: Context, one: Eviction) -> str:
    """Publish a compacted checkpoint in its plain form, without blobs, and move its encoded files to trash."""
    # The remote has the plain blobs, or its own encoding of them. It does not have the encoded files of this store.
    layout, info = context.layout, one.info
    with open_directory(context, info) as directory:
        if directory.manifest.form.is_plain:
            return "another process has evicted it"
        document = _check_claimed(one, directory.lock)
        plain = files.read_file(PLAIN, most_bytes=MANIFEST_MAX_BYTES, dir_fd=directory.lock.fd)
    staging = Staging.create(layout, info.run, info.step)
    try:
        stage_remote_only(document, staging.lock)
        staging.seal(plain)
        claimed = partial(_check_claimed, one)
        key, lock = publish_generation(layout, staging, info.key, info.id, claimed)
    except BaseException as error:
        reclaim.abandon(context, staging, error)
        raise
    staging.lock.release()
    with lock:
        trash.move_to_trash(layout, layout.checkpoint(info.key), lock)
    for folder in (layout.trash, layout.checkpoint(key).parent):
        files.sync_directory(folder)
    context.known.directories.changed(key, staging.inode, None)
    context.known.directories.changed(info.key, None, None)
    update_row(context, key)
    return ""


def evict_by_rule(context: Context, *, dry_run: bool = False) -> EvictReport:
    """Free local bytes of checkpoints that `keep_local` does not keep and that the mirror has."""
    policy, mirror = policy_of(context.layout, KEEP_LOCAL), setting_of(context.layout, MIRROR)
    if policy is None:
        raise BadInput(
            f"{context.layout.root} has no policy keep_local",
            hint="set one: store.config.keep_local = RetentionPolicy(keep_last=3)",
            command_hint="set one: ckstore config keep-local --keep-last 3",
        )
    if mirror is None:
        raise BadInput(f"{context.layout.root} has no mirror", hint="ckstore config mirror NAME")
    plan = _plan_local(context, policy, mirror)
    going = [entry.info for entry in plan.dropped]
    why = {entry.info.name: f"keep_local: {'; '.join(entry.reasons)}" for entry in plan.dropped}
    if not going:  # this is the case after most pushes, so no request is made
        return EvictReport(mirror, dry_run, (), (), 0, 0, plan)
    there = named_remote(context, mirror)
    return replace(evict(context, going, there, dry_run=dry_run, why=why), plan=plan)


def _plan_local(context: Context, policy: RetentionPolicy, mirror: str) -> RetentionPlan:
    """Return a plan with the checkpoints that keep their local data. The mirror has each of the others."""
    # Checkpoints without local data are left out. Otherwise the policy would count them, and keep fewer local
    # checkpoints for a resume. This plan reads no manifests, but an eviction reads the manifest of each checkpoint.
    here = [info for info in infos(context) if not info.elsewhere]
    lacking = {info.name: not_yet(mirror) for info in behind(context.layout, mirror, here)}
    return plan_among(context, policy, here, lacking)


class MirrorEvictor:
    """Frees local bytes of checkpoints that the mirror has, for a save that lacks space; see `Context.evictor`.

    Attributes:
        name: The name of the mirror.
    """

    def __init__(self, context: Context, mirror: str) -> None:
        self._context = context
        self.name = mirror

    def evictable(self) -> list[CheckpointInfo]:
        """Return the checkpoints with local data that the mirror has, or none if the mirror does not answer."""
        try:
            remote = named_remote(self._context, self.name, writing=False)
            read_info(remote.objects, remote.name)
        except RemoteError:  # an eviction would first ask the mirror, and evict nothing
            return []
        here = [info for info in infos(self._context) if not info.elsewhere]
        lacking = {info.id for info in behind(self._context.layout, self.name, here)}
        return [info for info in here if info.id not in lacking]

    def plan(self, policy: RetentionPolicy) -> RetentionPlan:
        """Return a plan with the checkpoints that keep their local data. The others can be evicted."""
        return _plan_local(self._context, policy, self.name)

    def evict(self, going: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """Evict checkpoints, and return those that were evicted."""
        why = {info.name: "a save needed the space" for info in going}
        return evict(self._context, going, named_remote(self._context, self.name), why=why).evicted


def keep_local(context: Context) -> EvictReport | None:
    """Evict by the policy `keep_local` after a push. Return None if the store has no such policy."""
    return None if policy_of(context.layout, KEEP_LOCAL) is None else evict_by_rule(context)
