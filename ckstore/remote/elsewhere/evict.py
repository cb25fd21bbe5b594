"""Evict: let go of local bytes that a remote has. The checkpoint stays listed, and its bytes are fetched when read.

Nothing is let go before it is elsewhere (P11): every blob was sent there in a way that the service checks, or read back
and compared, and the remote still lists it. Then, under the lock of who takes a directory apart: ``elsewhere.json`` is
made durable; ``blobs/`` goes to trash by one rename; the collector frees what no other checkpoint uses. A kill between
any two of these leaves a checkpoint that reads as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse, NoSuchRef, RemoteError
from ckstore.fs import files, links, locks, peek
from ckstore.model.checkpoint.elsewhere import Elsewhere, Holder
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.retention_report import Skipped
from ckstore.model.reports.transfer import EvictReport
from ckstore.model.settings.settings import ELSEWHERE
from ckstore.model.times import text_of_time
from ckstore.objects import store_locks, trash
from ckstore.objects.checkpoints import id_at, judge_blobs, key_with_id
from ckstore.objects.documents import marks
from ckstore.objects.documents.elsewhere import touch, write_elsewhere
from ckstore.objects.layout import BLOBS
from ckstore.ops.config_file import KEEP_LOCAL, MIRROR, policy_of, setting_of
from ckstore.ops.context import Context
from ckstore.ops.events import note
from ckstore.ops.failures import OF_ALL, failure_of, joined
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import make_kept_durable
from ckstore.ops.free.retain import plan_local
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.protection import gone
from ckstore.ops.requires import require
from ckstore.remote.elsewhere.attest import Attest, attest_of
from ckstore.remote.objects import Remote
from ckstore.remote.push import Manner
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import OtherStore, reach, uuid_of

_CATALOG_TIMEOUT_S = 5.0
_RUN_TIMEOUT_S = 10.0


def evict(
    context: Context,
    infos: Sequence[CheckpointInfo],
    remote: Remote | OtherStore,
    *,
    dry_run: bool = False,
    why: Mapping[str, str] = MappingProxyType({}),
) -> EvictReport:
    """Let go of the blobs of checkpoints that a remote has; see `ckstore.Store.evict`.

    What fails for one stops no other; the error at the end names each that failed.
    """
    # `why`: names of checkpoints -> why they go, for the journal; by hand, if it is not said.
    if not dry_run:
        context.check_writable()
    holder = Holder(uuid_of(remote), remote.name)
    attest = attest_of(context, remote, Manner())
    evicted: list[CheckpointInfo] = []
    skipped: list[Skipped] = []
    failures: dict[str, CkstoreError] = {}
    digests: dict[str, int] = {}
    try:
        for info in infos:
            try:
                problem = _try_one(context, info, remote, holder, attest, digests, dry_run=dry_run)
            except (NoSuchRef, DamagedBlob, InUse) as error:  # dropped meanwhile, or not to be read: the others may go
                problem = error.message
            except OF_ALL:  # nor would the next one be looked at
                raise
            except (CkstoreError, OSError) as error:
                failures[info.name] = failure_of(f"evicting {info.name}", error)
                continue
            if problem:
                skipped.append(Skipped(info, problem))
                continue
            evicted.append(info)
            if not dry_run:
                reason = why.get(info.name, "by hand")
                note(context, "evicted", info.key.run_step, id=info.id, why=f"{remote.name} has it; {reason}")
    finally:
        # Also after an error: what was read back once need not be read again.
        if not dry_run:
            with suppress(CkstoreError, OSError):  # it only saves work, and must not hide the first error
                attest.keep()
            reclaim.give_back(context, digests)
    if failures:
        raise joined(failures)
    freed = {digest for digest in digests if not peek.exists(context.layout.blob(digest))}
    return EvictReport(
        remote.name,
        dry_run,
        tuple(evicted),
        tuple(skipped),
        0 if dry_run else sum(digests[digest] for digest in freed),
        attest.read_back_bytes,
    )


def _try_one(  # noqa: PLR0917
    context: Context,
    info: CheckpointInfo,
    remote: Remote | OtherStore,
    holder: Holder,
    attest: Attest,
    digests: dict[str, int],
    *,
    dry_run: bool,
) -> str:
    """Evict one checkpoint; return why it keeps its blobs, empty if it does not."""
    with open_directory(context, info) as directory:
        blobs = directory.manifest.blobs
        judged = judge_blobs(directory.lock.inside, directory.lock.fd, directory.manifest)
        if judged.problem or marks.read_mark(directory.lock.fd) is not None:
            return judged.problem or "it is marked as damaged: verify it first"
        if directory.manifest.encoding is not None:
            return "it was compacted, and no remote has the files that it is decoded from"
        if not blobs or len(judged.elsewhere) == len(blobs):
            return "it has no bytes here"
    with ExitStack() as held:
        try:
            if isinstance(remote, OtherStore):
                # Until the bytes here are gone: it must not let go of its own because of ours.
                its = remote.context.layout
                key = key_with_id(its, info.run, info.step, info.id)
                if key is None:
                    return f"{remote.name} does not have it"
                held.enter_context(locks.lock_shared(its.checkpoint(key)))
            problem = attest.lacks(place_of(info), blobs, read=not dry_run)
        except FileNotFoundError:
            return f"{remote.name} does not have it"
        except RemoteError as error:
            return error.message
        if problem or dry_run:
            return problem
        _let_go(context, info, holder)
    digests.update((blob.digest, blob.nbytes) for blob in blobs)
    return ""


def _let_go(context: Context, info: CheckpointInfo, holder: Holder) -> None:
    layout = context.layout
    path = layout.checkpoint(info.key)
    # Before the first checkpoint without blobs is there: a reader that does not know them would take it for torn.
    require(context, ELSEWHERE)
    make_kept_durable(context, info.run)
    with ExitStack() as held:
        # The run first, as savers do: one that looks at the checkpoints of a step must not meet one without blobs.
        run_lock = held.enter_context(store_locks.lock_run(layout, info.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S))
        lock = locks.try_exclusive(path)
        if lock is None and not peek.is_directory(path):
            raise gone(info)
        if lock is None:
            raise InUse(f"{info.name} is open for reading", hint="close it, then evict again")
        held.enter_context(lock)
        if id_at(path) != info.id or not lock.names(path):
            raise gone(info)
        document = Elsewhere(text_of_time(datetime.now(UTC)), (holder,))
        write_elsewhere(layout, lock, document)
        run_lock.check()
        # One rename: its directory has all of its blobs, or none and the word where they are.
        target = trash.free_name(layout.trash, f"{info.run}@{info.key.directory}")
        links.rename(path / BLOBS, target)
        links.make_directory(path / BLOBS)
        # The new parent first; only then may the collector unlink what is below it (rule F).
        files.sync_directory(layout.trash)
        files.sync_open_directory(lock.fd)
        touch(lock)
    try:
        reconcile_one(context, info.key, timeout_s=_CATALOG_TIMEOUT_S)
    except (CkstoreError, OSError):  # the next opener does it: the times of the manifest say so
        return


def evict_by_rule(context: Context, *, dry_run: bool = False) -> EvictReport:
    """Let go of the bytes that `keep_local` does not keep here, of checkpoints that the mirror has."""
    policy, mirror = policy_of(context.layout, KEEP_LOCAL), setting_of(context.layout, MIRROR)
    if policy is None:
        raise BadInput(
            f"{context.layout.root} has no policy keep_local",
            hint="set one: store.config.keep_local = RetentionPolicy(keep_last=3)",
            command_hint="set one: ckstore config keep-local --keep-last 3",
        )
    if mirror is None:
        raise BadInput(f"{context.layout.root} has no mirror", hint="ckstore config mirror NAME")
    plan = plan_local(context, policy, mirror)
    going = [entry.info for entry in plan.dropped]
    why = {entry.info.name: f"keep_local: {'; '.join(entry.reasons)}" for entry in plan.dropped}
    if not going:  # as after most pushes; then no request is made
        return EvictReport(mirror, dry_run, (), (), 0, 0, plan)
    there = reach(context, mirror)
    return replace(evict(context, going, there, dry_run=dry_run, why=why), plan=plan)


def evict_mirrored(context: Context, infos: Sequence[CheckpointInfo]) -> EvictReport:
    """Let go of the bytes of checkpoints that the mirror has, for a save that lacks space."""
    mirror = setting_of(context.layout, MIRROR) or ""
    why = "a save needed the space"
    return evict(context, infos, reach(context, mirror), why={info.name: why for info in infos})


def keep_local(context: Context) -> EvictReport | None:
    """As `evict_by_rule`, after a push; None: there is no such policy."""
    return None if policy_of(context.layout, KEEP_LOCAL) is None else evict_by_rule(context)
