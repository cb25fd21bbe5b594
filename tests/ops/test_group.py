"""A store that two users of a group work in on one host, each as the kernel sees them: with a user id of their own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.requirements import representatives
from tests.support.stores import check_blobs, references_of_manifests
from tests.support.users import GROUP, User, common_folder, users
from tests.support.warm_python import WarmPython, warm_pythons

pytestmark = pytest.mark.crossed
MIB = 2**20
_PRELUDE = """
import json, os, sys, warnings
import numpy as np
from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, InUse
def state(*seeds):
    return {f"w{s}": np.random.default_rng(s).integers(0, 256, 2**20, dtype=np.uint8) for s in seeds}
def names():
    return sorted(info.name for info in store.checkpoints())
def tell(*values):
    print(json.dumps(values))
store = Store(sys.argv[1])
def told():
    return [note for note in store.warnings if "without a journal" not in note]  # that of this machine's disk
"""


@dataclass(frozen=True)
class Member:
    """A user at work in the store of the group."""

    user: User
    store: Path
    python: WarmPython

    def do(self, code: str) -> Any:
        """Run code with the store open as `store`; return what it told last."""
        return self.python.run(self.user, _PRELUDE + code, self.store)

    def start(self, code: str) -> subprocess.Popen[str]:
        """Begin to run code with the store open as `store`."""
        return self.user.start(sys.executable, "-c", _PRELUDE + code, self.store)

    def ckstore(self, *words: object, status: int = 0) -> str:
        """Run a command in the store, which must end with `status`; return what it printed."""
        done = self.user.ckstore(*words, "--store", self.store)
        assert done.returncode == status, done.stderr
        return done.stdout

    def catalog(self) -> Path:
        (found,) = self.user.home.glob(".cache/ckstore/*/catalog.db")
        return found


Members = tuple[Member, Member]
_MADE = """
import ckstore, sys
with ckstore.Store.init(sys.argv[1]) as store:
    store.config.undo_by_hand_s = store.config.undo_by_rule_s = 0  # tests look at what is freed
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Callable[[User], WarmPython]]:
    with warm_pythons((GROUP,)) as made:
        yield made


_UMASKS = {0o077: "umask 077", 0o022: "umask 022"}


def _of_umask(kept: int) -> pytest.MarkDecorator:
    """Have one of them stand for both."""
    return pytest.mark.parametrize("group", representatives(_UMASKS, kept), ids=_UMASKS.values(), indirect=True)


@pytest.fixture(params=[*_UMASKS], ids=[*_UMASKS.values()])
def group(request: pytest.FixtureRequest, warm: Callable[[User], WarmPython]) -> Iterator[Members]:
    """Two users of a group, and their store, made as docs/how-to/group.md says; afterwards it is whole."""
    with common_folder() as folder:
        one, two = users(folder, groups=(GROUP,), umask=request.param)
        place = folder / "shared"
        place.mkdir()
        place.chmod(0o777)
        store = place / "store"
        made = one.run("sh", "-ec", f"mkdir {store} && chgrp {GROUP} {store} && chmod 2770 {store}")
        assert made.returncode == 0, made.stderr
        warm(one).run(one, _MADE, store)
        yield Member(one, store, warm(one)), Member(two, store, warm(two))
        check_blobs(store)
        references_of_manifests(store)
        with Store(store, readonly=True) as whole:
            assert whole.verify().ok


@pytest.fixture(params=["owner first", "owner second"])
def both(request: pytest.FixtureRequest, group: Members) -> Members:
    """The members in both orders: the owner of the store, and another one."""
    return group if request.param == "owner first" else group[::-1]


def test_each_member_does_everything_with_what_the_other_made(both: Members) -> None:
    one, two = both
    one.do("""
store.save(state(1, 9), step=1, metrics={"loss": 2.0}, tags=["best"])
store.save(state(2, 9), step=2)
store.save(state(3, 9), step=3)
store.pin(2, "mine")
store.config.retention = RetentionPolicy(keep_last=8)
store.annotate(1, metrics={"score": 0.5})
""")

    told = two.do("""
said = [names(), np.array_equal(store.load("best")["w1"], state(1)["w1"]), store.config.retention.keep_last]
info = store.save(state(4, 9), step=4)
said.append([info.catalogued, info.warnings])
store.annotate(1, metrics={"other": 0.7})
store.annotate(4, metrics={"score": 0.9})
store.tag("best", 4)
(pin,) = store.pins()
store.unpin(pin.name)
store.pin(3, "yours")
store.config.retention = RetentionPolicy(keep_last=7)
said += [store.verify().ok, told()]
tell(*said)
""")
    assert told == [["main@1", "main@2", "main@3"], True, 8, [True, []], True, []]

    told = one.do("""
info = store.info(1)
said = [names(), info.metrics, info.tags, store.info("best").step, store.config.retention.keep_last]
(pin,) = store.pins()
said.append(pin.reason)
store.unpin(pin.name)
store.delete(1)
store.save(state(5, 9), step=4, if_exists="replace", parent=4)
store.annotate(4, note="the other")
store.untag("best")
said += [store.verify().ok, names(), told()]
tell(*said)
""")
    names = ["main@1", "main@2", "main@3", "main@4"]
    metrics = {"loss": 2.0, "score": 0.5, "other": 0.7}
    assert all("belongs to uid" in note for note in told.pop())  # gc cannot free what the other one's was
    assert told == [names, metrics, [], 4, 7, "yours", True, names[1:]]


def test_each_member_has_a_catalog_of_their_own_that_knows_what_the_other_did(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1)")
    two.do("store.save(state(2), step=2)")
    one.do("store.save(state(3), step=3); store.delete(2)")

    code = "tell(sorted([key.run, key.step] for key in store._context.catalog.listing()), told())"
    for member in both:
        assert member.do(code) == [[["main", 1], ["main", 3]], []]
        assert stat.S_IMODE(member.catalog().stat().st_mode) == 0o600
        assert member.catalog().stat().st_uid == member.user.uid
    assert not list(one.store.glob("catalog.db*"))


def blobs_of(member: Member) -> list[int]:
    """Return the sizes of all blobs of a user, each inode once."""
    seen: dict[int, int] = {}
    for path in member.store.rglob("xxh3-*"):
        status = path.lstat()
        if status.st_uid == member.user.uid and stat.S_ISREG(status.st_mode):
            seen[status.st_ino] = status.st_size
    return list(seen.values())


def test_gc_frees_what_is_the_users_own_and_names_the_owner_of_the_rest(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1); store.save(state(2), step=2)")
    two.do("store.save(state(3), step=3); store.save(state(4), step=4)")

    report = two.do("""
for step in (1, 3):
    store.delete(step)
report = store.gc()
tell(report.freed_bytes, len(report.held), report.held_bytes, [blob.why for blob in report.held], report.explanation)
""")
    assert report[:3] == [0, 1, MIB]  # what was dropped of the user's own went with the deletion
    assert f"belongs to uid {one.user.uid}" in report[3][0]
    assert f"uid {one.user.uid}" in report[4]
    assert "open in" not in report[4]
    assert len(blobs_of(two)) == 1
    assert len(blobs_of(one)) == 2

    assert one.do("report = store.gc(); tell(len(report.held))") == [0]
    assert len(blobs_of(one)) == 1
    assert os.listdir(one.store / "trash") == []


def test_blobs_that_another_member_pulled_back_do_not_count_as_linked_outside(both: Members) -> None:
    one, two = both
    far = one.store.parent / "far"
    assert one.user.run("sh", "-ec", f"mkdir {far} && chgrp {GROUP} {far} && chmod 2770 {far}").returncode == 0
    one.do(f"""
store.remotes.add("far", {str(far)!r})
for step in (1, 2):
    store.save(state(step), step=step)
store.push(all=True, remote="far")
store.evict(1, remote="far")
store.gc()
""")
    two.do('store.pull(1, "far")')

    for _ in range(2):
        found = one.do("report = store.gc(); tell(*map(len, (report.linked_outside, report.plan.linked_outside)))")
        assert found == [0, 0]


def test_gc_of_the_owner_finds_what_another_member_condemned_without_that_members_catalog(both: Members) -> None:
    """The owner's catalog has never seen the checkpoint that the other one dropped: blobs/ is listed before gc."""
    one, two = both
    elsewhere = "os.environ['XDG_CACHE_HOME'] = os.environ['HOME'] + '/elsewhere'; "  # as in a container of theirs
    one.do(f"{elsewhere} Store(sys.argv[1]).save(state(1), step=1)")
    two.do("store.delete(1); store.gc()")
    assert len(blobs_of(one)) == 1

    one.do("store.gc()")

    assert blobs_of(one) == []
    assert os.listdir(one.store / "trash") == []


def test_prune_by_one_member_drops_what_the_other_saved(both: Members) -> None:
    one, two = both
    for step in range(4):
        one.do(f"store.save(state({step}), step={step})")

    out = two.ckstore("prune", "--keep-last", "1")  # the kernel answers for your own files only

    assert "main@0" in out
    assert two.do("tell(names())") == [["main@3"]]
    one.do("store.gc()")
    assert len(blobs_of(one)) == 1


def test_what_a_member_holds_is_not_freed_by_the_other(both: Members) -> None:
    """The kernel's answer about your own file reaches across users; a reader's lock does, too."""
    one, two = both
    one.do("store.save(state(1), step=1); store.save(state(2), step=2)")
    (blob,) = (path for path in blobs_dir(one.store, "main", 1).iterdir())
    code = f"fd = os.open({str(blob)!r}, os.O_RDONLY); tell(1); input()"
    with two.start(code) as reader:
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline()) == [1]
        held = one.do("store.delete(1); r = store.gc(); tell(r.freed_count, r.held_bytes, r.explanation)")
        assert held[:2] == [0, MIB]
        assert "a process that is not visible to this one" in held[2]
        reader.communicate("\n")

    assert one.do("tell(store.gc().freed_bytes)") == [MIB]


def test_a_dead_save_of_one_member_is_swept_by_the_other_and_freed_by_its_owner(both: Members) -> None:
    one, two = both
    code = """
from ckstore.objects.staging import Staging
staging = Staging.create(store._context.layout, "main", 5)
from ckstore.model.digest import algorithm_named
data = memoryview(bytes(2**20))
staging.put(algorithm_named("xxh3_128").digest(data), data)
os.kill(os.getpid(), 9)
"""
    with one.start(code) as saver:
        saver.communicate()
    assert saver.returncode == -9
    assert len(os.listdir(one.store / "staging")) == 1

    assert two.do("tell(told())") == [[]]
    assert os.listdir(one.store / "staging") == []
    assert two.do("tell(store.save(state(1), step=1).catalogued)") == [True]

    one.do("store.gc()")
    assert blobs_of(one) == []
    assert os.listdir(one.store / "trash") == []


def test_a_save_that_died_before_it_opened_its_directory_to_the_group_stops_no_gc(both: Members) -> None:
    """mkdir makes it for its user alone, and a chmod opens it: for ever, if the save dies between the two."""
    one, two = both
    one.do("store.save(state(1), step=1, run='one')")
    one.do("os.mkdir(store.path / 'staging' / 'one@2.0123456789ab', 0o700)")
    two.do("store.save(state(2), step=1, run='two')")
    # gc asks what other names a blob has that no checkpoint uses.
    code = """
for blob in sorted(store.path.glob("blobs/*/*")):
    if blob.stat().st_uid == os.getuid():
        os.link(blob, os.path.expanduser("~/outside"))
store.delete("two@1")
report = store.gc()
os.unlink(os.path.expanduser("~/outside"))
tell(len(report.linked_outside), store.gc().freed_bytes)
"""
    linked, freed_bytes = two.do(code)
    assert linked == 1
    assert freed_bytes >= MIB
    for word in ("verify", "du", "gc"):
        two.ckstore(word)
    assert os.listdir(one.store / "staging") == ["one@2.0123456789ab"]
    one.do("store.gc()")
    assert os.listdir(one.store / "staging") == []


def test_a_condemned_blob_that_a_dead_collector_left_is_freed_by_its_owner(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1); store.delete(1)")
    one.do(
        "from ckstore.ops.free import reclaim; reclaim.free_unused = lambda *_: None; "
        "store.save(state(2), step=2); store.delete(2)"
    )
    (blob,) = (path for path in (one.store / "blobs").rglob("xxh3-*") if path.lstat().st_size == MIB)
    blob.rename(one.store / "trash" / f"{blob.name}.0123456789ab")

    assert two.do("r = store.gc(); tell(r.freed_count, r.held_bytes)") == [0, MIB]
    one.do("store.gc()")

    assert blobs_of(one) == []


def test_a_frozen_part_is_stored_once_a_user_in_any_order_of_saves(both: Members) -> None:
    """Hardlinks to other users' files are refused by the kernel: each user links to what they saved before."""
    _, two = both
    for step in range(6):
        member = both[step % 2]
        member.do(f"store.save({{**state({step}), **state(90, 91)}}, step={step})")

    for member in both:
        assert sum(blobs_of(member)) == 5 * MIB
    assert two.do("store.delete(0); store.gc(); tell(store.verify().ok)") == [True]


@_of_umask(0o077)
def test_members_that_save_tag_annotate_drop_and_collect_at_once_lose_nothing(group: Members) -> None:
    code = """
me = str(os.getuid())
for step in range(12):
    store.save(state(step % 3, 9), run=f"of-{me}", step=step, tags=[f"last-{me}"])
    store.annotate(f"of-{me}@{step}", metrics={"by": int(me)})
    while step >= 2:
        try:
            store.delete(f"of-{me}@{step - 2}")
        except InUse:  # the other one, who catches up, looks at it at this moment
            continue
        break
    store.save(state(step), run="both")
    if step % 4 == 3:
        try:
            store.gc()
        except CkstoreError as error:
            assert type(error).__name__ == "InUse", error
tell(told())
"""
    with ExitStack() as running:
        members = [running.enter_context(member.start(code)) for member in group]
        ends = [process.communicate(timeout=120) for process in members]

    assert [process.returncode for process in members] == [0, 0], ends
    for member in group:
        uid = member.user.uid
        told = member.do(f"tell(len(store.checkpoints('both')), store.info('last-{uid}').step, store.verify().ok)")
        assert told == [24, 11, True]
        member.do("store.gc()")
    for member in group:
        assert member.do("r = store.gc(); tell(r.held_bytes, r.trash_left)") == [0, []]


def test_a_damaged_blob_of_one_member_is_found_and_healed_by_the_other(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1)")
    (blob,) = (path for path in blobs_dir(one.store, "main", 1).iterdir())
    damaged = bytearray(blob.read_bytes())
    damaged[5000] ^= 1
    times = blob.stat()
    blob.write_bytes(damaged)
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))

    told = two.do("""
report = store.verify()
store.save(state(1), step=2)
tell(report.ok, len(report.damage), store.verify().ok, int(store.load(1)["w1"][4999]))
""")

    assert told[:3] == [False, 1, True]


def test_damage_that_one_member_finds_in_a_blob_of_the_other_is_not_offered_to_saves_again(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1)\nstore.save({**state(1), **state(2)}, step=1, run='other')")
    (blob,) = blobs_dir(one.store, "main", 1).iterdir()
    canonical = one.store / "blobs" / blob.name.partition("-")[2][:2] / blob.name
    damaged = bytearray(blob.read_bytes())
    damaged[5000] ^= 1
    times = blob.stat()
    blob.write_bytes(damaged)
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))

    # The load marks one of the two checkpoints, and withdraws the name that saves look for.
    two.do("""
try:
    store.load(1)
except CkstoreError:
    tell()
""")
    assert not canonical.exists()
    # None of them reads the blob.
    for look in ("store.verify(quick=True)", "store.verify(sample=0.000001)", "store.verify(repair=True, quick=True)"):
        for member in (one, two):
            member.do(f"{look}\ntell()")
            assert not canonical.exists(), (look, member.user.uid)
    one.ckstore("reindex")
    assert not canonical.exists()

    told = one.do("store.save(state(1), step=2)\ntell(int(store.load(2)['w1'][5000]), len(store.verify().damage))")

    assert told[0] == damaged[5000] ^ 1
    one.do("""
for info in store.checkpoints():
    if info.step == 1:
        store.delete(info)
report = store.gc()
tell(len(report.linked_outside))
""")


def test_everything_that_one_member_leaves_can_be_read_and_replaced_by_the_other(both: Members) -> None:
    one, _ = both
    one.do("""
store.save(state(1), step=1, tags=["a"]); store.pin(1, "x"); store.annotate(1, metrics={"m": 1.0})
store.config.retention = RetentionPolicy(keep_last=5); store.verify()
""")

    for folder, names, files in os.walk(one.store):
        for name in names:
            mode = (Path(folder) / name).lstat()
            if stat.S_ISDIR(mode.st_mode):
                assert stat.S_IMODE(mode.st_mode) == 0o2770, name
                assert mode.st_gid == GROUP, name
        for name in files:
            status = (Path(folder) / name).lstat()
            private = Path(folder).name == "reserve"
            assert private or status.st_mode & 0o040, f"{folder}/{name}"
            assert status.st_gid == GROUP, name


def test_a_member_is_told_what_a_store_of_a_group_means(both: Members) -> None:
    one, two = both
    one.do("store.save(state(1), step=1)")
    two.do("store.save(state(2), step=2)")

    for member in both:
        found = member.do("tell({f.what: [f.level, f.found] for f in store.doctor().findings})")[0]
        assert found["permissions"][0] == "note"
        assert "group" in found["permissions"][1]
        assert found["owner"][0] in ("ok", "note")
        assert str(member.user.home) in found["catalog"][1]
        assert found["leases"][0] == "ok"


def test_the_sticky_bit_keeps_members_from_what_others_saved_by_one_clear_error(both: Members) -> None:
    one, two = both
    (one.store / "config.json").unlink()  # its owner is the first that writes it
    for folder in (one.store, *(path for path in one.store.rglob("*") if path.is_dir())):
        folder.chmod(0o3770)
    code = """
store.save(state(1), step=1)
store.config.retention = RetentionPolicy(keep_last=5)
from ckstore.objects.staging import Staging
Staging.create(store._context.layout, "main", 5)
open(sys.argv[1] + "/blobs/.try-0123456789ab", "w")
os.kill(os.getpid(), 9)
"""
    with one.start(code) as saver:
        saver.communicate()
    assert saver.returncode == -9

    said = two.do("""
said = [told()]
store.save(state(2), step=2, tags=["mine"])
store.annotate(1, metrics={"m": 1.0})
for act in (
    lambda: store.delete(1),
    lambda: store.save(state(3), step=1, if_exists="replace", parent=1),
    lambda: setattr(store.config, "retention", RetentionPolicy(keep_last=6)),
):
    try:
        act()
    except CkstoreError as error:
        said.append(str(error))
said += [names(), store.verify().ok, store.gc().freed_count]
tell(*said)
""")
    owner = (
        two.store.stat().st_uid == two.user.uid
    )  # of the directories, in which the sticky bit does not bind that user
    assert said[0] == []
    assert all("Operation not permitted" in error for error in said[1:-3])
    # A save at a step of another member is published beside that checkpoint, which stays.
    assert owner or len(said[1:-3]) == 2
    assert said[-2:] == [True, 0]
    assert one.do("tell(told(), os.listdir(sys.argv[1] + '/staging'))") == [[], []]


@_of_umask(0o022)
def test_root_in_a_store_of_a_group_frees_what_members_left(group: Members) -> None:
    one, two = group
    one.do("store.save(state(1), step=1)")
    two.do("store.save(state(2), step=2); store.delete(1)")
    with Store(one.store) as store:
        assert store.gc().freed_bytes == MIB
    for path in one.store.rglob("*"):
        assert path.lstat().st_uid != 0 or path.parent.name == "reserve", path
    assert two.do("tell(names(), told())") == [["main@2"], []]


@_of_umask(0o077)
def test_a_user_outside_the_group_is_refused_by_one_clear_error(group: Members) -> None:
    one, _ = group
    with common_folder() as folder:
        _, _, stranger = users(folder, 3)
        done = stranger.ckstore("log", "--store", one.store)

    assert done.returncode == 1
    assert f"{one.store}/store.json: Permission denied" in done.stderr
    assert "hint: the store belongs to another user" in done.stderr


def test_a_member_without_a_home_of_their_own_has_the_catalog_in_a_private_temporary_folder() -> None:
    """As a service has none, and as su and sudo may leave that of another user in HOME."""
    code = """
import sys
from ckstore import Store
store = Store.open_or_init(sys.argv[1])
store.save({"x": 1})
print(store._context.catalog.path, store.gc().freed_count)
"""
    with common_folder() as folder:
        one, two = users(folder, groups=(GROUP,))
        bare = folder / "bare"
        bare.mkdir()
        store = one.home / "store"
        assert one.run("mkdir", "-m", "2770", store).returncode == 0
        for home in ("/nonexistent", two.home, bare):
            told = one.run(sys.executable, "-c", code, store, HOME=str(home))
            assert told.returncode == 0, told.stderr
            catalog = Path(told.stdout.split()[0])
            shutil.rmtree(catalog.parent)
            assert catalog.parents[1] == Path(f"/var/tmp/ckstore-{one.uid}")
            assert stat.S_IMODE(catalog.parents[1].stat().st_mode) == 0o700
        assert not list(bare.iterdir())
        assert not (two.home / ".cache").exists()


def test_the_rule_of_a_member_is_for_what_that_member_saved(group: Members) -> None:
    owner, member = group
    owner.do("[store.save(state(step), step=step) for step in (1, 2, 3)]")
    member.do("store.config.retention = RetentionPolicy(keep_last=1)")
    assert owner.do("store.save(state(4), step=4); tell(*names())") == ["main@1", "main@2", "main@3", "main@4"]

    told = member.do("[store.save(state(step), step=step) for step in (5, 6)]; tell(*names())")

    assert told == ["main@1", "main@2", "main@3", "main@4", "main@6"]
    owner.do("store.config.retention = RetentionPolicy(keep_last=2)")
    # The rule of the owner of the store is for all, and each member applies it.
    assert member.do("store.save(state(7), step=7); tell(*names())") == ["main@6", "main@7"]


def test_gc_now_ends_the_undo_of_a_member_s_own_checkpoints(both: Members) -> None:
    one, two = both
    one.do("store.config.undo_by_hand_s = 86400; [store.save(state(step), step=step) for step in (1, 2)]")
    two.do("[store.save(state(step), step=step) for step in (3, 4)]; store.delete(1); store.delete(3)")

    told = two.do("report = store.gc(now=True); tell([one.step for one in report.waiting], report.freed_count > 0)")

    assert told == [[1], True]
    one.do("store.undo(1); store.config.undo_by_hand_s = 0")


def test_a_base_that_another_member_saved_is_stored_once_for_all_runs_of_a_member(both: Members) -> None:
    one, two = both
    one.do("store.save(state(9), step=1, run='theirs')")
    (base,) = (path.name for path in blobs_dir(one.store, "theirs", 1).iterdir())

    for run in ("a", "b", "c"):
        two.do(f"store.save(state(9), step=1, run={run!r}); store.save(state(9), step=2, run={run!r})")

    copies = [path.stat() for path in (two.store / "checkpoints").glob(f"[abc]/*/blobs/{base}")]
    assert len(copies) == 6
    assert {(status.st_uid, status.st_ino) for status in copies} == {(two.user.uid, copies[0].st_ino)}


def test_a_member_renews_the_times_of_their_own_files_and_is_told_of_the_others(group: Members) -> None:
    one, two = group
    one.do("store.save(state(1, 2), step=1)")
    two.do("store.save(state(1, 3), step=2)")  # it shares a blob of the other
    month_s = 30 * 86400
    for path in {found.stat().st_ino: found for found in one.store.rglob("*") if found.is_file()}.values():
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns - month_s * 10**9, status.st_mtime_ns - month_s * 10**9))

    for member in group:
        (refused,) = member.do("warnings.simplefilter('ignore'); tell(store.touch().refused)")
        assert [text.split(" of uid ")[1] for text in refused] == [
            f"{other.user.uid}, who alone may renew them" for other in group if other is not member
        ]

    fresh = {path: path.stat().st_mtime > path.stat().st_ctime - 3600 for path in one.store.glob("blobs/*/*")}
    assert all(fresh.values()), "each renewed their own"
    assert two.do("tell(store.verify(quick=True).ok)") == [True]
