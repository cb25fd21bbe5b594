"""Gather facts about a store and its filesystem, and evaluate them (`Store.doctor`)."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, get_args

from ckstore.build_info import build_info
from ckstore.errors import CkstoreError, UnsafePlace
from ckstore.fs import dirfd_stat, statx
from ckstore.fs.dirfd_stat import may_give
from ckstore.fs.dirfd_stat import may_write as may_write_in
from ckstore.fs.holders import deleted_but_open
from ckstore.fs.host import machine, probe
from ckstore.fs.host.crossing import said_of_projects
from ckstore.model.doctor import ability_checks, contents, owners
from ckstore.model.doctor.finding import DoctorFinding, DoctorReport, ok
from ckstore.model.doctor.place import check_place
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import key_of
from ckstore.model.reports.check_result import CheckResult
from ckstore.model.reports.held_blobs import DeletedFile
from ckstore.objects import reserve, survey, trash
from ckstore.objects.checkpoints import id_at
from ckstore.objects.layout import BLOBS
from ckstore.ops.api_calls import why_of
from ckstore.ops.config_file import (
    BY_RUN,
    UNDO_BY_HAND_S,
    PolicyMember,
    policies_by_run,
    policy_of,
    read_config,
    setting_of,
)
from ckstore.ops.context import Context
from ckstore.ops.free.undo import waiting
from ckstore.ops.index.catalog_place import place_of
from ckstore.ops.refs.labels import pins
from ckstore.ops.refs.listing import infos, order_problem
from ckstore.ops.refs.protection import doubtful_tags, way_out

Findings = Iterator[DoctorFinding]
Look = tuple[str, Callable[["Context"], Findings]]


class MoreChecks(NamedTuple):
    """Checks that higher floors add."""

    # Checks the listed checkpoints, including superseded ones. The list is passed because listing takes the most time.
    of_checkpoints: Callable[[Context, Sequence[CheckpointInfo]], Iterable[CheckResult]]
    subject: str  # the subject of `of_subject`, which the finding names if `of_subject` fails
    of_subject: Callable[[Context], Iterable[CheckResult]]


def examine_all(context: Context, more: MoreChecks) -> DoctorReport:
    """Run all checks; if a check fails, its error becomes a finding."""
    findings: list[DoctorFinding] = []
    leaks: list[DeletedFile] = []
    looks: tuple[Look, ...] = (
        *_LOOKS,
        ("checkpoints", partial(_checkpoints, more)),
        *_LATER_LOOKS,
        (more.subject, lambda context: _findings(more.of_subject(context))),
        ("hash", _hashes),
        ("leaked files", partial(_leaks, leaks)),
    )
    # Catch errors of each check separately: a directory that this user may not read must not hide other findings.
    for subject, look in looks:
        try:
            findings += look(context)
        except (CkstoreError, OSError) as error:
            found = why_of(error)
            do = "run doctor as the owner of the store, or as root"
            findings.append(DoctorFinding("warning", subject, f"could not be checked: {found}", do))
    return DoctorReport(tuple(findings), tuple(leaks))


def _findings(found: Iterable[CheckResult]) -> Findings:
    return (DoctorFinding(*one) for one in found)


def _place(context: Context) -> Findings:
    yield from check_place(place_of(context.layout.path)[0])


def _space(context: Context) -> Findings:
    room = dirfd_stat.free_space(context.layout.path)
    newest = next(iter(infos(context, newest=1)), None)
    facts = ability_checks.SpaceFacts(
        total_bytes=room.total_bytes,
        free_bytes=room.free_bytes,
        total_inodes=room.total_inodes,
        free_inodes=room.free_inodes or 0,
        newest_bytes=newest.logical_bytes if newest is not None else 0,
        reserve_bytes=reserve.kept_bytes(context.layout),
        reserve_wanted_bytes=reserve.wanted_bytes(context.layout),
    )
    yield ability_checks.check_bytes(facts)
    yield ability_checks.check_inodes(facts)
    yield ability_checks.check_reserve(facts)


def _machine(context: Context) -> Findings:
    facts = ability_checks.AbilityFacts(
        read_ahead_kib=machine.read_ahead_kib(context.layout.path),
        direct_io_bytes=statx.direct_io_bytes(context.layout.settings),
        open_files=machine.open_files_limit(),
    )
    yield ability_checks.check_dirty(machine.dirty_pages())
    yield ability_checks.check_read_ahead(facts)
    yield ability_checks.check_direct_io(facts)
    yield ability_checks.check_open_files(facts)


def _abilities(context: Context) -> Findings:
    layout = context.layout
    may_write = may_write_in(layout.staging)
    wrong = _try_links(context) if may_write else None
    projects, lease = "", "shared"
    if may_write:
        # Some directories may have another project id, for example if a run has its own quota.
        folders = [layout.staging, layout.trash, *(layout.checkpoints / run for run in layout.runs())]
        projects = said_of_projects(folder for folder in folders if dirfd_stat.is_directory(folder))
    if layout.view.sees_locks:
        # Only the owner of a file and root can request a lease.
        owner = os.stat(layout.path).st_uid
        lease = machine.lease_support(layout.settings) if os.geteuid() in (owner, 0) else "foreign"
    facts = ability_checks.AbilityFacts(
        links=wrong,
        projects=projects,
        lease=lease,
        reflink=machine.can_reflink(layout.staging) if may_write else None,
    )
    yield ability_checks.check_links(facts)
    yield ability_checks.check_lease(facts)
    yield ability_checks.check_reflink(facts)


def _try_links(context: Context) -> str:
    """Try to make links, and return the value of `AbilityFacts.links`."""
    layout = context.layout
    try:
        probe.try_links(layout.staging, layout.linked)
    except UnsafePlace as error:
        return error.message
    return ""


def _sqlite(_context: Context) -> Findings:
    from ckstore.catalog.connection import sqlite_version

    yield ability_checks.check_sqlite(ability_checks.AbilityFacts(sqlite=sqlite_version()))


def _version(_context: Context) -> Findings:
    yield ok("ckstore", str(build_info()))


def _catalog(context: Context) -> Findings:
    path = context.catalog.path
    if context.catalog_is_private and not path.exists():
        whose = "this user" if context.view.sees_locks else "this host"
        yield ok("catalog", f"{whose} has none yet; opening the store for writing creates it at {path}")
    else:
        where = str(path) if context.catalog_is_private else ""
        yield contents.check_catalog(context.catalog.check(), where, context.catalog.damaged())


def _files(context: Context) -> Findings:
    layout = context.layout
    found = survey.survey(layout)
    status = os.stat(layout.path)
    facts = owners.OwnerFacts(
        path=str(layout.root),
        mode=stat.S_IMODE(status.st_mode),
        owner=survey.user_name(status.st_uid),
        owner_id=status.st_uid,
        process_id=os.geteuid(),
        may_give=os.geteuid() != 0 or may_give(),
        open_to_all=tuple(found.open_to_all),
        foreign_count=found.foreign_count,
        writable_blobs=found.writable_blobs,
    )
    yield owners.check_owner(facts)
    yield owners.check_permissions(facts)
    yield owners.check_layout(probe.misplaced(layout.root, layout.directories))
    limits = ability_checks.AbilityFacts(link_limit=machine.link_limit(layout.path), link_most=found.link_most)
    yield ability_checks.check_headroom(limits)


def _staging(context: Context) -> Findings:
    dead = frozenset(trash.dead_stagings(context.layout))
    yield contents.check_staging(
        survey.leftovers(context.layout.staging, dead), other_hosts=not context.view.sees_locks
    )


def _trash(context: Context) -> Findings:
    layout = context.layout
    found = survey.leftovers(layout.trash)
    if not layout.view.frees_at_once:  # in this case, the grace period applies to all of trash
        yield contents.check_trash(found, other_hosts=True)
        return
    waits = waiting(context)
    entries = {one.entry for one in waits}
    yield contents.check_trash([one for one in found if one.name not in entries])
    yield contents.check_undo(setting_of(layout, UNDO_BY_HAND_S), waits)


def _tags(context: Context) -> Findings:
    doubtful = doubtful_tags(context.layout)
    do = way_out(next(iter(doubtful), ""))
    yield contents.check_tags(len(context.layout.tags()), [*doubtful.values()], do)


def _pins(context: Context) -> Findings:
    try:
        all_pins = pins(context)
    except CkstoreError as error:
        yield contents.check_pins(contents.PinFacts(problem=error.message))
        return
    now = datetime.now(UTC)
    facts = contents.PinFacts(
        count=len(all_pins),
        expired=tuple(pin.name for pin in all_pins if pin.expired(now)),
        dangling=tuple(pin.name for pin in all_pins if pin.dangling),
    )
    yield contents.check_pins(facts)


def _checkpoints(more: MoreChecks, context: Context) -> Findings:
    """Check all checkpoints.

    They are listed only once, since listing ten thousand checkpoints takes most of the time of all checks.
    """
    every = infos(context, superseded=True)
    listed = [info for info in every if not info.superseded]
    misplaced = [info for info in every if info.out_of_order]
    yield contents.check_order([context.notices.problems[order_problem(info)] for info in misplaced])
    newest = {info.run: info for info in listed}
    healthy = {info.run: info for info in listed if not info.unhealthy}
    yield contents.check_health({run: (info, healthy.get(run)) for run, info in newest.items()})
    yield from _findings(more.of_checkpoints(context, every))


def _rules(context: Context) -> Findings:
    config = read_config(context.layout)
    kept = {member: policy_of(context.layout, member, config) for member in get_args(PolicyMember)}
    policies = {member: policy for member, policy in kept.items() if policy is not None}
    by_run = policies_by_run(context.layout, config)
    finding = contents.check_rules(policies | {f"{BY_RUN} {name!r}": policy for name, policy in by_run.items()})
    if finding is not None:
        yield finding


def _damage(context: Context) -> Findings:
    quarantined = trash.names_in(context.layout.quarantine)
    yield contents.check_damage(survey.marked(context.layout), quarantined)


def _readings(context: Context) -> Findings:
    now_ns = time.time_ns()
    count, unread, oldest_ns = context.catalog.oldest_reading(None, now_ns=now_ns)
    yield contents.check_readings(count, unread, (now_ns - (oldest_ns or now_ns)) / 1e9)


def _ages(context: Context) -> Findings:
    newest = next(iter(infos(context, newest=1)), None)
    if newest is None:
        return
    path = context.layout.checkpoint(newest.key)
    found = [status for folder in (path, path / BLOBS) for _, status in dirfd_stat.statuses(folder)]
    files = [context.layout.settings, context.layout.config]
    found += [status for file in files if (status := dirfd_stat.find(file)) is not None]
    oldest = min((status for status in found if stat.S_ISREG(status.st_mode)), key=lambda status: status.st_mtime_ns)
    owner = "" if oldest.st_uid in (os.geteuid(), 0) else survey.user_name(oldest.st_uid)
    yield contents.check_ages(str(context.layout.path), max(time.time() - oldest.st_mtime, 0.0), owner)


def _hashes(context: Context) -> Findings:
    layout = context.layout
    strangers = []
    for path, place in layout.places():
        found = id_at(place)
        if found is not None and not found.startswith(f"{layout.hash_prefix}-"):
            key = key_of(path.parent.name, path.name)
            strangers.append(path.inner if key is None else key.name)
    yield contents.check_hashes(sorted(strangers), context.settings.hash)


def _leaks(found: list[DeletedFile], context: Context) -> Findings:
    # Report only files of the store, since the command lines of unrelated processes must not be disclosed.
    found += deleted_but_open(os.stat(context.layout.path).st_dev, str(context.layout.path))
    yield contents.check_leaks(found)


_LOOKS: tuple[Look, ...] = (
    ("ckstore", _version),
    ("filesystem", _place),
    ("links", _abilities),
    ("free space", _space),
    ("machine", _machine),
    ("SQLite", _sqlite),
    ("catalog", _catalog),
    ("permissions", _files),
    ("staging", _staging),
    ("trash", _trash),
    ("tags", _tags),
    ("pins", _pins),
    ("rules", _rules),
)
_LATER_LOOKS: tuple[Look, ...] = (
    ("damage", _damage),
    ("last readings", _readings),
    ("purge by age", _ages),
)
