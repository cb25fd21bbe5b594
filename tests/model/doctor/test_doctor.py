"""Facts become findings: each that is not ok says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.model.doctor import ability_checks, contents, owners
from ckstore.model.doctor.finding import LEVELS, DoctorFinding, DoctorReport, age_words
from ckstore.model.doctor.place import PlaceFacts, check_place
from ckstore.model.host import DirtyFacts
from ckstore.model.reports.check_result import Level
from ckstore.model.reports.gc_report import Leftover
from ckstore.model.reports.held_blobs import DeletedFile, Holder
from ckstore.model.sizes import size_text

GIB = 2**30
sizes = st.integers(0, 2**50)


def levels_of_place(**facts: object) -> dict[str, str]:
    given_facts: dict[str, Any] = {"path": "/s", "kind": "ext4", "mount": "/", "source": "/dev/x", "journal": True}
    return {finding.what: finding.level for finding in check_place(PlaceFacts(**{**given_facts, **facts}))}


@given(level=st.sampled_from(LEVELS[1:]))
def test_a_finding_that_is_not_ok_must_say_what_to_do(level: Level) -> None:
    with pytest.raises(ValueError, match="must say what to do"):
        DoctorFinding(level, "x", "y")


@given(levels=st.lists(st.sampled_from(LEVELS)))
def test_a_report_is_as_bad_as_its_worst_finding(levels: list[Level]) -> None:
    report = DoctorReport(tuple(DoctorFinding(level, "x", "y", "z") for level in levels))

    assert report.ok == ("error" not in levels)
    assert all(LEVELS.index(report.worst) >= LEVELS.index(level) for level in levels)
    assert report.worst in levels or not levels


@pytest.mark.parametrize(
    "facts,wanted",
    [
        ({}, {"filesystem": "ok", "journal": "ok", "mount options": "ok"}),
        ({"kind": "xfs", "journal": None}, {"filesystem": "ok", "journal": "ok"}),
        ({"kind": "btrfs", "journal": None}, {"filesystem": "note"}),
        ({"kind": ""}, {"filesystem": "note"}),
        ({"kind": ""}, {"durability": "warning"}),
        ({"journal": False}, {"journal": "note", "durability": "error"}),
        ({"journal": None}, {"journal": "note", "durability": "warning"}),
        ({"kind": "tmpfs"}, {"durability": "error"}),
        ({"kind": "overlay"}, {"filesystem": "warning"}),
        ({"kind": "nfs4"}, {"filesystem": "warning"}),
        ({"kind": "fuse.anything"}, {"filesystem": "warning"}),
        ({"kind": "fuse.mergerfs"}, {"filesystem": "note"}),
        ({"kind": "fuseblk"}, {"filesystem": "note"}),
        ({"kind": "lustre"}, {"filesystem": "warning", "striping": "note"}),
        ({"options": frozenset({"rw", "nobarrier"})}, {"durability": "error"}),
        ({"options": frozenset({"rw", "barrier=0"})}, {"durability": "error"}),
        ({"options": frozenset({"ro"})}, {"mount options": "note"}),
        ({"options": frozenset({"rw", "dirsync"})}, {"mount options": "note"}),
    ],
)
def test_a_place_is_judged_by_what_it_is(facts: dict[str, object], wanted: dict[str, str]) -> None:
    found = levels_of_place(**facts)

    assert {what: found.get(what) for what in wanted} == wanted


@pytest.mark.parametrize(
    "mount,do",
    [
        ("/data", "unmount it, then as root: tune2fs -O has_journal /dev/x and e2fsck -f /dev/x"),
        (
            "/",
            "put the store on another filesystem, which has a journal. Or give this one a journal; a running system ",
        ),
    ],
)
def test_without_a_journal_doctor_says_what_can_be_done_there(mount: str, do: str) -> None:
    found = {finding.what: finding for finding in check_place(PlaceFacts("/s", "ext4", mount, "/dev/x", journal=False))}

    assert found["durability"].do.startswith(do)
    assert "tune2fs -O has_journal /dev/x" in found["durability"].do
    assert (found["journal"].level, found["journal"].found) == ("note", "/dev/x has no journal")


@pytest.mark.parametrize(
    "kind,options,level,says",
    [
        ("nfs4", "rw,vers=4.2,local_lock=none", "ok", "reach other hosts"),
        ("nfs4", "rw,local_lock=all", "warning", "reach other hosts (local_lock=all)"),
        ("nfs", "rw,vers=3,local_lock=none", "ok", "reach other hosts"),
        ("nfs", "rw,vers=3,nolock,local_lock=all", "warning", "reach other hosts (nolock)"),
        ("nfs", "rw,local_lock=flock", "warning", "reach other hosts (local_lock=flock)"),
        ("nfs", "rw,local_lock=posix", "ok", "reach other hosts"),
        ("lustre", "rw,flock", "ok", "reach other hosts"),
        ("lustre", "rw,localflock", "warning", "reach other hosts (localflock)"),
        ("lustre", "rw", "warning", "reach other hosts (no flock)"),
        ("ceph", "rw", "ok", "reach other hosts"),
        ("gfs2", "rw,localflocks", "warning", "reach other hosts (localflocks)"),
        ("gpfs", "rw", "warning", "file locks on gpfs"),
        ("fuse.sshfs", "rw", "warning", "file locks on fuse.sshfs"),
    ],
)
def test_the_type_and_the_options_of_a_mount_say_how_far_locks_reach(
    kind: str, options: str, level: str, says: str
) -> None:
    facts = PlaceFacts("/s", kind=kind, mount="/", source="x", options=frozenset(options.split(",")))
    (found,) = (finding for finding in check_place(facts) if finding.what == "locks")

    assert (found.level, says in found.found) == (level, True)
    assert ("one host at a time" in found.found) == (level == "warning")


def test_nothing_is_said_of_locks_where_there_is_one_host() -> None:
    assert "locks" not in levels_of_place()


@given(facts=st.builds(ability_checks.SpaceFacts, *[sizes] * 7))
def test_room_for_the_newest_checkpoint_is_missed_before_it_is_needed(facts: ability_checks.SpaceFacts) -> None:
    level = ability_checks.check_bytes(facts).level

    assert (level == "error") == (facts.free_bytes < facts.reserve_wanted_bytes)
    if facts.free_bytes < facts.newest_bytes:
        assert level in ("warning", "error")
    if level == "ok":
        assert facts.free_bytes >= 0.05 * facts.total_bytes


ROOM = ability_checks.SpaceFacts(100 * GIB, 50 * GIB, 10**6, 10**6, GIB, 2**20, 2**20)


@pytest.mark.parametrize(
    "total,free,level", [(0, 0, "ok"), (100, 15, "error"), (10**6, 999, "warning"), (10**6, 10**5, "ok")]
)
def test_inodes_run_out_too(total: int, free: int, level: str) -> None:
    assert ability_checks.check_inodes(replace(ROOM, total_inodes=total, free_inodes=free)).level == level


def test_a_reserve_that_was_given_up_is_told() -> None:
    assert ability_checks.check_reserve(ROOM).level == "ok"
    assert ability_checks.check_reserve(replace(ROOM, reserve_bytes=0)).level == "note"


@given(dirty=sizes, writeback=sizes, limit=sizes)
def test_dirty_pages_near_the_limit_make_writers_wait(dirty: int, writeback: int, limit: int) -> None:
    level = ability_checks.check_dirty(DirtyFacts(dirty, writeback, limit)).level

    assert (level == "warning") == (limit > 0 and dirty + writeback > 0.8 * limit)


ABLE = ability_checks.AbilityFacts()


@pytest.mark.parametrize(
    "check,facts,level",
    [
        (ability_checks.check_links, {}, "ok"),
        (ability_checks.check_links, {"links": None}, "note"),
        (ability_checks.check_links, {"links": "no links here"}, "error"),
        (ability_checks.check_lease, {"lease": "held"}, "ok"),
        (ability_checks.check_lease, {"lease": "no"}, "warning"),
        (ability_checks.check_reflink, {"reflink": True}, "ok"),
        (ability_checks.check_reflink, {"reflink": False}, "note"),
        (ability_checks.check_reflink, {"reflink": None}, "note"),
        (ability_checks.check_headroom, {"link_limit": 65000, "link_most": 58500}, "ok"),
        (ability_checks.check_headroom, {"link_limit": 65000, "link_most": 58501}, "note"),
        (ability_checks.check_headroom, {"link_limit": 0, "link_most": 10**9}, "ok"),
        (ability_checks.check_direct_io, {"direct_io_bytes": 512}, "ok"),
        (ability_checks.check_direct_io, {"direct_io_bytes": 0}, "note"),
        (ability_checks.check_direct_io, {"direct_io_bytes": None}, "ok"),
        (ability_checks.check_read_ahead, {"read_ahead_kib": 127}, "note"),
        (ability_checks.check_read_ahead, {"read_ahead_kib": 128}, "ok"),
        (ability_checks.check_read_ahead, {"read_ahead_kib": None}, "ok"),
        (ability_checks.check_open_files, {"open_files": 256}, "warning"),
        (ability_checks.check_open_files, {"open_files": 1024}, "ok"),
        (ability_checks.check_sqlite, {"sqlite": (3, 36, 0)}, "error"),
        (ability_checks.check_sqlite, {"sqlite": (3, 40, 1)}, "note"),
        (ability_checks.check_sqlite, {"sqlite": (3, 51, 3)}, "ok"),
    ],
)
def test_what_is_possible_here_is_judged(check: object, facts: dict[str, object], level: str) -> None:
    assert check(replace(ABLE, **facts)).level == level  # type: ignore[operator, arg-type]


@pytest.mark.parametrize(
    "version,has",
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_the_versions_of_sqlite_with_the_wal_reset_bug_are_known(version: tuple[int, int, int], has: bool) -> None:
    assert ability_checks.has_wal_reset_bug(version) is has


MINE = owners.OwnerFacts(path="/s", owner="ann", owner_id=7, process_id=7)


@pytest.mark.parametrize(
    "check,facts,level,said",
    [
        (owners.check_owner, {}, "ok", "ann"),
        (owners.check_owner, {"process_id": 0}, "note", "are given to that owner"),
        (owners.check_owner, {"process_id": 0, "may_give": False}, "warning", "root will own"),
        (owners.check_owner, {"process_id": 8}, "warning", "the user 8"),
        (owners.check_permissions, {}, "ok", "only ann may use"),
        (owners.check_permissions, {"mode": 0o750}, "note", "other users may read it"),
        (owners.check_permissions, {"mode": 0o2770}, "note", "read and change"),
        (owners.check_permissions, {"mode": 0o703}, "error", "any user of this machine may change /s"),
        (owners.check_permissions, {"open_to_all": ("/s/a", "/s/b", "/s/c", "/s/d")}, "error", "/s/c and 1 more"),
        (owners.check_permissions, {"foreign_count": 3}, "warning", ": 3"),
        (owners.check_permissions, {"writable_blobs": 2}, "warning", "mistake: 2"),
    ],
)
def test_whose_a_store_is_and_who_may_change_it_is_judged(
    check: object, facts: dict[str, object], level: str, said: str
) -> None:
    found = check(replace(MINE, **facts))  # type: ignore[operator, arg-type]

    assert (found.level, said in found.found) == (level, True), found


def test_directories_that_lead_elsewhere_are_an_error() -> None:
    assert owners.check_layout(()).level == "ok"
    assert owners.check_layout(("/s/blobs is a symlink",)).level == "error"


def leftover(age_s: float, *, alive: bool = False) -> Leftover:
    return Leftover("main@5.ab", age_s, 2**20, "ann", alive)


@pytest.mark.parametrize(
    "stagings,level,said",
    [
        ([], "ok", "no save"),
        ([leftover(5, alive=True)], "ok", "1 save running"),
        ([leftover(200000, alive=True)], "warning", "untouched for 2 days, owner ann"),
        ([leftover(5), leftover(200000, alive=True)], "note", "1 save died and left 1.0 MiB: main@5.ab"),
    ],
)
def test_saves_that_died_and_saves_that_hang_are_told(stagings: list[Leftover], level: str, said: str) -> None:
    found = contents.check_staging(stagings)

    assert (found.level, said in found.found) == (level, True), found


def test_trash_that_stays_is_told() -> None:
    assert contents.check_trash([]).level == "ok"
    assert contents.check_trash([leftover(5)]).level == "note"
    assert contents.check_trash([leftover(5), leftover(90000)]).level == "warning"


def test_pins_that_protect_nothing_are_told() -> None:
    assert contents.check_pins(contents.PinFacts(count=3)).level == "ok"
    assert "pin -d a" in contents.check_pins(contents.PinFacts(3, expired=("a", "b"))).do
    assert "pin -d c" in contents.check_pins(contents.PinFacts(3, dangling=("c",))).do
    assert contents.check_pins(contents.PinFacts(problem="x.json is damaged")).level == "warning"


def test_damage_and_quarantine_are_told() -> None:
    assert contents.check_damage([], []).level == "ok"
    assert contents.check_damage([], ["xxh3-1"]).level == "note"
    assert contents.check_damage(["main@1"], ["xxh3-1"]).level == "warning"
    assert contents.check_catalog([]).level == "ok"
    assert contents.check_catalog(["is damaged"]).level == "warning"
    assert contents.check_catalog([], damaged=["catalog.db.damaged-1"]).level == "note"
    assert "catalog.db.damaged-1" in contents.check_catalog([], damaged=["catalog.db.damaged-1"]).found


def test_leaked_files_are_told_by_process_the_largest_first() -> None:
    ann, bob = Holder(1, "ann", "mapping", "/a"), Holder(2, "bob", "descriptor 3", "/b")
    small, large = DeletedFile(10, 2**20, (ann, ann)), DeletedFile(11, 2 * GIB, (bob,))

    assert contents.check_leaks([DeletedFile(9, 0, (ann,))]).level == "ok"
    assert contents.check_leaks([small]).level == "note"
    found = contents.check_leaks([small, large])
    assert found.level == "warning"
    assert "2.0 GiB by PID 2 (bob), 1.0 MiB by PID 1 (ann)" in found.found


@pytest.mark.parametrize(
    "age_s,words",
    [(-5, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (7199, "119 minutes"), (86400, "24 hours")],
)
def test_ages_are_told_in_words(age_s: float, words: str) -> None:
    assert age_words(age_s) == words
    assert size_text(1536) == "1.5 KiB"
    assert size_text(12) == "12 B"
