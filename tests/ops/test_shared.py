"""A store that several hosts have: each its own catalog, none loses what another saved, and only an exclusive gc frees.

Two hosts are two processes, each with a cache of its own. On ``fuse`` each has a mount of its own of one folder, which
knows nothing of the locks, open files and leases of the other (`tests.support.shared_folder`). On ``elsewhere`` they
are on a local disk, and `catalog_path` says that the catalogs lie outside the store; that runs everywhere.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BadInput, InsufficientSpace, UnsafePlace
from ckstore.fs import files, holders
from ckstore.fs.host import own_folders
from tests.support.catalog_rows import forge_stamps
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.holding import holding
from tests.support.requirements import representatives, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links, references_of_manifests

MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]
_PRELUDE = """
import json, os, sys, warnings
import numpy as np
from ckstore import RetentionPolicy, Store
warnings.simplefilter("ignore")
path, catalog = sys.argv[1], sys.argv[2] or None
def state(*seeds):
    return {f"w{s}": np.random.default_rng(s).integers(0, 256, 2**20, dtype=np.uint8) for s in seeds}
def names():
    return sorted(info.name for info in store.checkpoints())
store = Store.open_or_init(path, chunk_bytes=2**20, catalog_path=catalog)
"""


def state(*seeds: int) -> dict[str, Any]:
    return {f"w{seed}": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8) for seed in seeds}


@dataclass(frozen=True)
class Host:
    """One host: its Python, where it has the store, its cache, and the `catalog_path` that it gives."""

    python: Path
    store: Path
    cache: Path
    catalog: Path | None

    def start(self, code: str, *words: str) -> subprocess.Popen[str]:
        """Begin to run code with the store open as `store`, and `words` as ``sys.argv[3:]``."""
        command = [str(self.python), "-c", _PRELUDE + code, str(self.store), str(self.catalog or ""), *words]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def do(self, code: str) -> Any:
        """Run code with the store open as `store`; return what it printed last, as JSON."""
        with self.start(code) as process:
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, code
        return json.loads(out.splitlines()[-1]) if out else None

    def catalog_file(self) -> Path:
        if self.catalog is not None:
            return self.catalog
        (found,) = self.cache.glob("ckstore/*/catalog.db")
        return found

    def open(self, **given: Any) -> Store:
        """Open the store in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(self.cache))
            return Store.open(self.store, catalog_path=self.catalog, **given)


Hosts = tuple[Host, Host]


KINDS = ("fuse", "elsewhere")
on_fuse = pytest.mark.parametrize("hosts", representatives(KINDS, "fuse"), indirect=True)
elsewhere = pytest.mark.parametrize("hosts", representatives(KINDS, "elsewhere"), indirect=True)


@pytest.fixture
def hosts(request: pytest.FixtureRequest, warm: Path, tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts that share one store, which is made by the first to come; afterwards its links and blobs are right."""
    kind: Literal["fuse", "elsewhere"] = request.param
    real = tmp_path / "real"
    real.mkdir()
    with ExitStack() as mounted:
        places = [real, real]
        if kind == "fuse":
            require_root()
            require_fuse()
            places = [mounted.enter_context(shared_folder(real, tmp_path / name)) for name in ("one", "two")]
        hosts = []
        for name, place in zip(("one", "two"), places, strict=True):
            cache = tmp_path / f"cache {name}"
            hosts.append(Host(warm / "python", place / "store", cache, None if kind == "fuse" else cache / "its.db"))
        yield hosts[0], hosts[1]
    check_links(real / "store")
    check_blobs(real / "store")
    references_of_manifests(real / "store")


def blob_bytes(host: Host) -> int:
    return sum(path.stat().st_size for path in (host.store / "blobs").rglob("xxh3-*"))


@on_fuse
def test_each_host_has_its_own_catalog_and_sees_what_the_other_did(hosts: Hosts) -> None:
    one, two = hosts

    one.do("store.save(state(1, 9), step=1); store.save(state(2), step=2)")
    seen = two.do("store.save(state(3, 9), step=3); store.tag('best', 1); print(json.dumps(names()))")
    assert seen == ["main@1", "main@2", "main@3"]
    seen = one.do("store.delete(2); print(json.dumps([names(), store.info('best').tags]))")
    assert seen == [["main@1", "main@3"], ["best"]]
    assert two.do("print(json.dumps([names(), store.latest().step]))") == [["main@1", "main@3"], 3]

    for host in hosts:
        file = host.catalog_file()
        with closing(sqlite3.connect(file)) as catalog:
            assert catalog.execute("SELECT step FROM checkpoints ORDER BY step").fetchall() == [(1,), (3,)]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not list(one.store.glob("catalog.db*"))


@elsewhere
def test_an_open_store_sees_what_another_host_does(hosts: Hosts) -> None:
    one, two = hosts
    two.do("store.save(state(1), step=1)")
    store = one.open()

    two.do("store.save(state(2), step=2); store.tag('best', 2); store.delete(1)")

    assert [info.name for info in store.checkpoints()] == ["main@2"]
    assert np.array_equal(store.load("best")["w2"], state(2)["w2"])
    assert store.save(state(3)).step == 3


@on_fuse
def test_hosts_that_save_at_the_same_time_share_equal_bytes_and_see_both_runs(hosts: Hosts) -> None:
    code = "for step in range(6): store.save(state(step, 9), step=step, run=sys.argv[3])"
    with ExitStack() as running:
        savers = [running.enter_context(host.start(code, f"of-{n}")) for n, host in enumerate(hosts)]
    assert [saver.returncode for saver in savers] == [0, 0]

    for host in hosts:
        assert host.do("print(json.dumps([len(names()), store.verify().ok]))") == [12, True]
    hosts[0].open().gc(exclusive=True)
    assert blob_bytes(hosts[1]) == 7 * MIB


_EVALUATE = """
from ckstore.errors import InUse
from ckstore.objects.documents import evaluations
evaluations._boot = lambda: sys.argv[3]
done = []
for info in store.follow("main", lacking="bleu", timeout_s=1):
    assert store.load(info)
    for left in range(20, -1, -1):
        try:  # of two hosts that write at the same moment one is refused, and changed nothing
            store.annotate(info, metrics={"bleu": info.step})
            break
        except InUse:
            if not left:
                raise
    done.append(info.step)
print(json.dumps(done))
"""


@on_fuse
def test_hosts_whose_locks_do_not_reach_each_other_evaluate_each_checkpoint_once(hosts: Hosts) -> None:
    one, two = hosts
    one.do("[store.save(state(step), step=step) for step in range(12)]")
    with ExitStack() as running:
        evaluators = [
            running.enter_context(host.start(_EVALUATE, name)) for name, host in zip("ab", hosts, strict=True)
        ]
        done = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in evaluators]
    assert sorted([*done[0], *done[1]]) == [*range(12)]
    assert two.do("print(json.dumps([info.metrics['bleu'] for info in store.checkpoints()]))") == [*range(12)]


@on_fuse
def test_what_a_killed_host_evaluated_is_given_on_its_own_host_at_once_and_elsewhere_after_the_patience(
    hosts: Hosts,
) -> None:
    one, two = hosts
    killed = replace(one, python=Path(sys.executable))  # SIGKILL of a warm one ends its fork only a moment later
    on_one, on_two = ("import sys; sys.argv.append('a')" + _EVALUATE, "import sys; sys.argv.append('b')" + _EVALUATE)
    stop = _EVALUATE.replace("store.annotate(", "print(info.step, flush=True); sys.stdin.read(); store.annotate(")
    one.do("store.save(state(1), step=1); store.save(state(2), step=2)")
    with killed.start(stop, "a") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert two.do(on_two) == [2]
        process.kill()
    assert two.do(on_two) == []
    assert one.do(on_one) == [1]

    one.do("store.save(state(3), step=3)")
    with killed.start(stop, "a") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "3\n"
        process.kill()
    assert two.do(on_two) == []
    assert two.do(f"store.config.evaluation_patience_s = 0\n{on_two}") == [3]


@elsewhere
def test_several_processes_of_a_host_may_make_a_store_with_one_catalog(hosts: Hosts) -> None:
    one, _ = hosts
    code = "store.save(state(1), run=sys.argv[3])"
    with ExitStack() as running:
        makers = [running.enter_context(one.start(code, f"of-{n}")) for n in range(3)]

    assert [maker.returncode for maker in makers] == [0, 0, 0]
    assert len(one.do("print(json.dumps(names()))")) == 3


@on_fuse
def test_nothing_is_freed_at_once_unless_the_user_says_that_no_other_host_is_at_work(hosts: Hosts) -> None:
    one, two = hosts
    one.do("store.save(state(1, 9), step=1); store.save(state(2, 9), step=2)")
    two.do("store.save(state(3, 9), step=3)")
    store = one.open()
    before = blob_bytes(one)

    with pytest.warns(CkstoreWarning, match="keep their data for the grace period") as told:
        store.delete(1)
    store.delete(2)
    assert len(told) == 1
    assert blob_bytes(one) == before
    would = store.gc(dry_run=True)
    assert store.gc().freed_bytes == 0
    assert store.prune(RetentionPolicy(keep_last=1)).freed_bytes == 0
    assert blob_bytes(one) == before

    report = store.gc(exclusive=True)

    assert (report.freed_bytes, report.freed_count) == (would.freed_bytes, would.freed_count) == (2 * MIB, 2)
    assert blob_bytes(two) == 2 * MIB
    assert os.listdir(one.store / "trash") == []
    assert np.array_equal(store.load(3)["w9"], state(9)["w9"])
    assert two.do("print(json.dumps([store.verify().ok, names()]))") == [True, ["main@3"]]


@elsewhere
def test_an_exclusive_gc_frees_what_this_host_never_heard_of(hosts: Hosts) -> None:
    one, two = hosts
    store = one.open() if one.do("print(json.dumps(names()))") == [] else None
    two.do("store.save(state(1), step=1); store.save(state(2), step=2); store.delete(1)")
    assert store is not None

    assert store.gc(exclusive=True).freed_bytes == MIB

    assert two.do("print(json.dumps([store.verify().ok, names()]))") == [True, ["main@2"]]


@elsewhere
def test_an_exclusive_gc_believes_no_row_of_a_checkpoint_that_it_did_not_look_at(hosts: Hosts) -> None:
    """An inode number is used again: the catalog takes the directory of another host's save for the one it knew."""
    one, two = hosts
    one.do("store.save(state(1), step=1)")
    two.do("store.save(state(2), step=1, if_exists='replace', parent=1)")
    forge_stamps(one.catalog_file(), checkpoint_dir(one.store, "main", 1))
    store = one.open(recover=False)  # opening would see it by the id

    assert store.gc(exclusive=True).freed_bytes == MIB

    assert np.array_equal(store.load(1)["w2"], state(2)["w2"])


@elsewhere
def test_a_checkpoint_that_another_host_replaced_is_seen_even_where_its_directory_has_the_old_number(
    hosts: Hosts,
) -> None:
    one, two = hosts
    one.do("store.save(state(1), step=1)")
    two.do("store.save(state(2), step=1, if_exists='replace', parent=1)")
    forge_stamps(one.catalog_file(), checkpoint_dir(one.store, "main", 1))

    assert np.array_equal(one.open().load(1)["w2"], state(2)["w2"])


@on_fuse
def test_opening_leaves_the_saves_of_other_hosts_and_what_they_dropped(hosts: Hosts) -> None:
    one, two = hosts
    one.do("store.save(state(1), step=1); store.save(state(2), step=2); store.delete(1)")
    code = """
from ckstore.objects.staging import Staging
staging = Staging.create(store._context.layout, "main", 5, read_back=False)
print("ready", flush=True)
input()
staging.lock.release()
"""
    with one.start(code) as saver:
        assert saver.stdout is not None
        assert saver.stdin is not None
        assert saver.stdout.readline() == "ready\n"
        two.do("store.save(state(3), step=3)")
        assert len(os.listdir(one.store / "staging")) == 1
        assert len(os.listdir(one.store / "trash")) == 1
        saver.stdin.write("\n")

    store = two.open()
    assert store.gc(exclusive=True).swept_stagings == 1
    assert os.listdir(one.store / "staging") == os.listdir(one.store / "trash") == []


@on_fuse
def test_retention_drops_and_says_once_that_the_bytes_stay(hosts: Hosts) -> None:
    one, _ = hosts
    one.do("store.config.retention = RetentionPolicy(keep_last=1)")
    store = one.open()

    warned = [store.save(state(step), step=step).warnings for step in range(4)]

    assert [len(lines) for lines in warned] == [0, 1, 0, 0]
    assert "ckstore gc --exclusive" in warned[1][0]
    assert [info.step for info in store.checkpoints()] == [3]
    assert blob_bytes(one) == 4 * MIB
    assert any("ckstore gc --exclusive" in line for line in store.warnings)
    assert store.gc(exclusive=True).freed_bytes == 3 * MIB


@elsewhere
def test_a_failed_save_leaves_what_it_wrote_and_the_next_uses_it(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = hosts
    one.do("pass")
    store = one.open()
    with monkeypatch.context() as patch:
        patch.setattr("ckstore.objects.publish.publish", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(state(1), step=1)
    assert blob_bytes(one) == MIB

    assert store.save(state(1), step=1).new_bytes == 0

    store.gc(exclusive=True)
    assert np.array_equal(store.load(1)["w1"], state(1)["w1"])


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.crossed
@pytest.mark.parametrize("hosts", KINDS, indirect=True)
@pytest.mark.parametrize("how", ["read", "mapped_shared", "opath"])
def test_an_exclusive_gc_keeps_what_a_process_of_this_host_has_open(how: str, hosts: Hosts) -> None:
    one, _ = hosts
    one.do("store.save(state(1), step=1)")
    store = one.open()
    (blob,) = (one.store / "blobs").rglob("xxh3-*")
    with holding(how, blob) as holder:
        with pytest.warns(CkstoreWarning):
            store.delete(1)
        report = store.gc(exclusive=True)

        assert (report.freed_count, [one.pid for held in report.held for one in held.holders]) == (0, [holder.pid])

    assert store.gc(exclusive=True).freed_bytes == MIB


@elsewhere
def test_a_save_that_does_not_fit_drops_nothing_and_names_the_exclusive_gc(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = hosts
    one.do("store.save(state(1), step=1); store.save(state(2), step=2); store.delete(1)")
    store = one.open()
    store.config.make_room = RetentionPolicy(keep_last=1)
    room = os.statvfs(one.store)
    full = os.statvfs_result((*room[:3], 0, 0, *room[5:]))
    monkeypatch.setattr("os.statvfs", lambda _: full)

    with pytest.raises(InsufficientSpace, match=r"ckstore gc --exclusive would free 1\.0 MiB"):
        store.save(state(3), step=3)

    assert [info.step for info in store.checkpoints()] == [2]


@on_fuse
def test_a_host_that_only_reads_needs_no_catalog_and_makes_none(hosts: Hosts) -> None:
    one, two = hosts
    one.do("store.save(state(1), step=1)")

    store = two.open(readonly=True)

    assert [info.name for info in store.checkpoints()] == ["main@1"]
    assert np.array_equal(store.load(1)["w1"], state(1)["w1"])
    assert not two.cache.exists()
    found = {finding.what: finding.found for finding in store.doctor().findings}
    assert found["catalog"].startswith("this host has none yet; opening the store for writing creates it at ")
    assert not two.cache.exists()


# ------------------------------------------------------------------------------------------ the place


def test_one_mount_knows_nothing_of_locks_and_leases_of_another(tmp_path: Path) -> None:
    """Why the kind of the filesystem decides and not what a lease says: it is given while the other host reads."""
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "one") as one, shared_folder(tmp_path / "real", tmp_path / "two"):
        (one / "file").write_bytes(b"x")
        with holding("read", tmp_path / "two" / "file"):
            assert holders.holding_of(one / "file") is not holders.Holding.HELD


def test_init_and_doctor_say_what_a_shared_filesystem_means(tmp_path: Path) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "shared", "juicefs") as shared:
        store = Store.init(shared / "store")
        said = [line for line in store.warnings if "fuse.juicefs" in line]
        found = {finding.what: finding for finding in store.doctor().findings}

    assert any("write each run from only one host at a time" in line for line in said)
    assert any("gc frees blobs after a grace period" in line for line in said)
    assert found["locks"].level == "warning"
    assert found["filesystem"].level == "warning"
    assert found["leases"].level == "note"
    assert str(tmp_path / ".home/.cache/ckstore") in found["catalog"].found


def test_the_command_line_frees_only_with_exclusive(warm: Path, tmp_path: Path) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()

    def ckstore(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(warm / "ckstore"), *words, "--store", str(tmp_path / "shared/store")]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)

    with shared_folder(tmp_path / "real", tmp_path / "shared") as shared:
        made = ckstore("init")
        with Store.open(shared / "store") as store:
            for step in (1, 2, 3):
                store.save(state(step), step=step)
        removed, would = ckstore("delete", "1"), ckstore("gc", "--dry-run")
        kept = ckstore("gc", "--keep-last", "1")
        left = [info.step for info in store.checkpoints()]
        done = ckstore("gc", "--keep-last", "1", "--exclusive")

        assert [info.step for info in store.checkpoints()] == [3]
    assert "a shared filesystem: hosts do not see which files another host has open" in made.stderr
    assert "it is unknown whether file locks on fuse.sshfs reach other hosts" in made.stderr
    assert (removed.returncode, "ckstore gc --exclusive" in removed.stderr) == (0, True)
    assert (kept.returncode, left) == (0, [3])
    assert (would.returncode, would.stdout.startswith("would free 1.0 MiB in 1 blob\n")) == (0, True)
    assert (done.returncode, "freed 2.0 MiB in 2 blobs" in done.stdout) == (0, True)


def test_a_shared_filesystem_without_links_is_refused(tmp_path: Path) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with (
        shared_folder(tmp_path / "real", tmp_path / "shared", lacks="link") as shared,
        pytest.raises(UnsafePlace, match="link from staging/"),
    ):
        Store.init(shared / "store")


def test_a_catalog_is_not_put_on_a_shared_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "shared") as shared:
        for path in (shared / "a.db", shared / "store/catalog.db"):
            with pytest.raises(UnsafePlace, match=r"fuse.sshfs is a shared filesystem, which SQLite cannot use"):
                Store.init(shared / "store", catalog_path=path)
        assert not (shared / "store").exists()

        monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "home"))
        monkeypatch.setattr(own_folders, "_TEMPORARY", (str(tmp_path / "var"), str(tmp_path / "tmp")))
        (tmp_path / "var").mkdir()
        (tmp_path / f"var/ckstore-{os.geteuid()}").mkdir(mode=0o777)
        (tmp_path / f"var/ckstore-{os.geteuid()}").chmod(0o777)
        Store.init(shared / "store").save({"x": 1})
        assert list((tmp_path / f"tmp/ckstore-{os.geteuid()}").rglob("catalog.db"))
        assert not (shared / "home").exists()

        (tmp_path / f"tmp/ckstore-{os.geteuid()}").chmod(0o777)
        with pytest.raises(UnsafePlace, match="there is no place for its catalog"):
            Store.open(shared / "store")


# ------------------------------------------------------------------------------------- the setting


def test_what_the_settings_say_of_other_hosts_holds_for_who_opens_the_store_next(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as store:
        store.save(state(1), step=1)
        store.save(state(2), step=2)
        store.config.shared = True
    with Store.open(tmp_path / "store") as store:
        catalog = {finding.what: finding.found for finding in store.doctor().findings}["catalog"]
        with pytest.warns(CkstoreWarning, match="its settings say that other hosts may use"):
            store.delete(1)

        assert any("its settings say that other hosts may use" in line for line in store.warnings)
        assert str(tmp_path / ".home/.cache/ckstore") in catalog
        assert store.gc().freed_bytes == 0
        assert store.gc(dry_run=True).freed_bytes == 2**20
        store.config.shared = False
    with Store.open(tmp_path / "store") as store:
        assert store.gc().freed_bytes == 2**20
        assert not any("other hosts" in line for line in store.warnings)


def test_a_store_of_one_host_on_a_shared_filesystem_frees_at_once(tmp_path: Path) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "shown") as shown:
        with Store.init(shown / "store", chunk_bytes=2**20) as store:
            store.save(state(1), step=1)
            store.save(state(2), step=2)
            store.config.shared = False
        with Store.open(shown / "store") as store:
            store.delete(1)

            assert os.listdir(shown / "store/trash") == []
            assert not any("shared filesystem" in line for line in store.warnings)
            assert not (shown / "store/catalog.db").exists()


def test_nothing_is_freed_while_it_cannot_be_read_whether_other_hosts_use_the_store(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as store:
        store.save(state(1), step=1)
        store.save(state(2), step=2)
        store.config.shared = True
    settings = tmp_path / "store/config.json"
    before = settings.read_bytes()
    settings.write_bytes(before[:-9])
    with Store.open(tmp_path / "store") as store:
        with pytest.warns(CkstoreWarning, match="its settings say that other hosts may use"):
            store.delete(1)
        with pytest.raises(BadInput):
            store.gc()

        assert any("nothing is freed until the settings can be read" in line for line in store.warnings)
        assert len(list((tmp_path / "store/trash").iterdir())) == 1
        assert (store.load(2)["w2"] == state(2)["w2"]).all()
    settings.write_bytes(before)
    with Store.open(tmp_path / "store") as store:
        assert store.gc(exclusive=True).freed_bytes == 2**20


def test_a_store_whose_settings_the_disk_does_not_give_is_read_and_frees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as store:
        store.save(state(1), step=1)
        store.save(state(2), step=2)

    read_file = files.read_file

    def failing(path: Any, **given: Any) -> bytes:
        if str(path).endswith("/config.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_file(path, **given)

    monkeypatch.setattr(files, "read_file", failing)
    with Store.open(tmp_path / "store", readonly=True) as store:
        assert (store.load(2)["w2"] == state(2)["w2"]).all()
    with Store.open(tmp_path / "store") as store:
        assert any("Input/output error" in line and "nothing is freed" in line for line in store.warnings)
        with pytest.warns(CkstoreWarning, match="its settings say that other hosts may use"):
            store.delete(1)
    assert len(list((tmp_path / "store/trash").iterdir())) == 1


# ------------------------------------------------------------------------------------- catalog_path


def test_a_catalog_path_is_relative_to_the_working_directory_and_its_folders_are_private(tmp_path: Path) -> None:
    store = Store.init("store", catalog_path="here/and/there/of it.db")
    store.save({"x": 1}, step=1)

    assert (tmp_path / "here/and/there/of it.db").is_file()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("here", "here/and")] == [0o700, 0o700]
    assert not (tmp_path / "store/catalog.db").exists()
    assert store.config.retention is None
    assert Store.open("store", catalog_path=Path("here/../here/and/there/of it.db")).info(1).step == 1


def test_the_usual_catalog_by_its_path_is_the_usual_catalog(tmp_path: Path) -> None:
    with Store.init("store", catalog_path="store/catalog.db") as store:
        store.save({"x": 1}, step=1)
        store.delete(1)
        store.gc()

    assert (tmp_path / "store/catalog.db").is_file()


@pytest.mark.parametrize("path", ["store/other.db", "store/blobs/catalog.db", "folder", "."])
def test_a_catalog_path_that_cannot_be_is_refused_before_anything_is_made(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(BadInput, match="catalog_path"):
        Store.init("store", catalog_path=path)

    assert not (tmp_path / "store").exists()


def test_two_stores_never_share_a_catalog(tmp_path: Path) -> None:
    with Store.init("one", catalog_path="its.db") as one:
        one.save({"x": 1}, step=1)
        uuid = one.settings.uuid
    Store.init("two").save({"x": 2}, step=2)

    for readonly in (False, True):
        with pytest.raises(BadInput, match=f"belongs to the store {uuid}") as refused:
            Store.open("two", catalog_path="its.db", readonly=readonly)
        assert "give each store its own catalog_path" in refused.value.hint
    with pytest.raises(BadInput, match="belongs to the store"):
        Store.init("three", catalog_path="its.db")
    with pytest.raises(BadInput, match="belongs to the store"):
        Store.open("one", catalog_path="two/catalog.db")

    assert not (tmp_path / "three").exists()
    assert [info.step for info in Store.open("one", catalog_path="its.db").checkpoints()] == [1]


def test_a_host_local_catalog_that_is_lost_or_damaged_is_rebuilt(tmp_path: Path) -> None:
    store = Store.init("store", catalog_path="cache/its.db")
    store.save({"x": 1}, step=1)
    catalog = tmp_path / "cache/its.db"

    catalog.unlink()
    again = Store.open("store", catalog_path="cache/its.db")
    assert [key.name for key in again._context.catalog.listing()] == ["main@1"]
    catalog.write_bytes(b"no database" * 1000)
    with pytest.warns(CkstoreWarning, match=r"Rebuilt the catalog.*its.db.damaged-1"):
        again = Store.open("store", catalog_path="cache/its.db")

    assert [key.name for key in again._context.catalog.listing()] == ["main@1"]
    assert again._context.catalog.owner() == again.settings.uuid
