"""Several who make one store at once, also two hosts on a shared filesystem, where neither sees the other's locks."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import shutil
import tempfile
import traceback
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ckstore import CkstoreWarning, Store
from ckstore.errors import BadInput, StoreNotFound
from ckstore.fs import files, links, locks
from ckstore.fs.dirfd_stat import AnyPath, StorePath
from ckstore.fs.host import probe
from ckstore.model.similar_names import similar_names
from ckstore.objects.layout import Layout
from ckstore.ops.open import opening as creating
from ckstore.ops.settings_file import read_settings
from tests.support.crashing import run_and_kill
from tests.support.meanwhile import run_with
from tests.support.requirements import CRASH_FULL, require, require_root
from tests.support.stores import check_store

STEPS = [
    (links, "link"),
    (links, "rename"),
    (links, "make_directory"),
    (links, "unlink"),
    (links, "remove_directory"),
    (files, "create_file"),
    (files, "sync_directory"),
    (os, "listdir"),
]


def create(root: Path) -> bool:
    return creating.create(root, hash_name="xxh3_128", chunk_bytes=2**20)


def create_in_a_child(root: Path) -> None:
    try:
        create(root)
    except BaseException:
        traceback.print_exc()
        os._exit(2)  # which is neither a kill nor a success


def names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


@pytest.fixture
def no_common_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the root keep no process out, as those of another host do not."""
    lock_exclusive = locks.lock_exclusive

    def lock(path: AnyPath, **given: Any) -> Any:
        return lock_exclusive(path, **given) if isinstance(path, StorePath) and path.parts else nullcontext()

    monkeypatch.setattr(locks, "lock_exclusive", lock)


def leave_half_made(root: Path) -> None:
    """Leave what killed processes left: a temporary store.json, and names of one who was just trying links."""
    for at in itertools.count(1):
        assert run_and_kill(lambda: create(root), at=at, before=False)
        if any(name.startswith(".try-") for folder in Layout(root).linked for name in names(folder.path)):
            break
    (root / "store.json.0123456789ab").touch()


def settings_names(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith("store.json")]


def check_clean(root: Path) -> None:
    """Opening leaves nothing but a store that works."""
    with Store.open(root) as store:
        store.save({"w": b"1"}, step=1)
        assert [info.step for info in store.checkpoints()] == [1]
    check_store(root)
    layout = Layout(root)
    assert settings_names(root) == ["store.json"]
    assert [name for folder in layout.linked for name in os.listdir(folder.path) if "try-" in name] == []
    assert os.listdir(layout.staging.path) == []


@pytest.mark.crossed
@pytest.mark.usefixtures("no_common_locks")
@pytest.mark.parametrize("half", [False, True], ids=["nothing there", "half-made there"])
@pytest.mark.parametrize("opens", [False, True], ids=["makes", "makes and opens"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_of_two_who_make_a_store_at_once_one_does_and_both_have_it(
    tmp_path: Path, before: bool, half: bool, opens: bool
) -> None:
    if half:
        leave_half_made(tmp_path / "half")
    for at in itertools.count(1):
        root = tmp_path / str(at)
        if half:
            shutil.copytree(tmp_path / "half", root)
        made: list[bool] = []
        settings: list[object] = []

        def meanwhile(root: Path = root, made: list[bool] = made, settings: list[object] = settings) -> None:
            made.append(create(root))
            if opens:
                Store.open(root).close()
            settings.append(read_settings(root))

        mine, there = run_with(partial(create, root), meanwhile, at, before=before, steps=STEPS)

        assert [mine, *made].count(True) == 1, f"at step {at}"
        assert all(read == read_settings(root) for read in settings), "the settings of a store were replaced"
        if not half:  # else it is for the first process that opens it
            assert settings_names(root) == ["store.json"]
        check_clean(root)
        if not there:
            break
    assert at > 25


@pytest.mark.usefixtures("no_common_locks")
def test_hosts_that_begin_at_the_same_moment_have_one_store(tmp_path: Path) -> None:
    for number in range(3):
        root = tmp_path / str(number)
        catalogs = [tmp_path / f"{number} of {host}.db" for host in range(3)]

        with multiprocessing.get_context("fork").Pool(3) as hosts:
            results = hosts.starmap_async(begin, [(host, root, catalogs) for host in range(3)]).get(timeout=120)

        assert results == [read_settings(root).uuid] * 3, results
        assert settings_names(root) == ["store.json"]
        assert os.listdir(root / "staging") == []
        for host, catalog in enumerate(catalogs):
            with Store.open(root, catalog_path=catalog) as store:
                assert sorted(info.run for info in store.checkpoints()) == ["of-0", "of-1", "of-2"]
                assert store.load(f"of-{host}@1") == {"w": bytes([host])}


def begin(host: int, root: Path, catalogs: list[Path]) -> str:
    with Store.open_or_init(root, catalog_path=catalogs[host]) as store:
        store.save({"w": bytes([host])}, step=1, run=f"of-{host}")
    return read_settings(root).uuid


@pytest.mark.crash
@pytest.mark.usefixtures("no_common_locks")
def test_a_death_while_a_store_is_made_keeps_no_other_process_from_it(tmp_path: Path) -> None:
    """At each step of ours another process begins, and dies at one of its own, at another one each time."""
    for at in itertools.count(1, 1 if CRASH_FULL else 5):
        root = tmp_path / str(at)

        def meanwhile(root: Path = root, at: int = at) -> None:
            run_and_kill(lambda: create_in_a_child(root), at=1 + at * 17 % 29, before=False)

        there = run_with(partial(create, root), meanwhile, at, before=True, steps=STEPS)[1]

        check_clean(root)
        if not there:
            break
    assert at > 25


def test_what_killed_makers_left_is_gone_when_the_store_is_made(tmp_path: Path) -> None:
    leave_half_made(tmp_path / "store")
    with pytest.raises(StoreNotFound):
        Store.open(tmp_path / "store")

    Store.init(tmp_path / "store").close()

    check_clean(tmp_path / "store")


def test_what_a_user_keeps_beside_the_settings_stays(store: Store) -> None:
    for name in ("store.json.bak", "store.json.0123456789ab.orig"):
        (store.path / name).touch()
    (store.path / "store.json.d").mkdir()
    (store.path / "store.json.0123456789ab").touch()

    assert Store.open(store.path).warnings == store.warnings

    assert sorted(settings_names(store.path)) == [
        "store.json",
        "store.json.0123456789ab.orig",
        "store.json.bak",
        "store.json.d",
    ]


def test_nothing_is_left_of_what_could_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(links, "link", fail)
    monkeypatch.setattr(probe, "try_links", lambda *_: None)
    for _ in range(3):
        with pytest.raises(BadInput, match=r"no store could be made at .*: Input/output error"):
            Store.init(tmp_path / "store")

    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("call", ["sync_directory", "sync_name"])
def test_a_store_whose_names_are_not_durable_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, call, fail)
    with pytest.raises(BadInput, match=r"no store could be made at .*: Input/output error"):
        Store.init(tmp_path / "store")


@pytest.mark.parametrize("place", ["inner", "staging/x", "trash/x", "checkpoints/run/7"])
def test_no_store_is_made_in_another_one(tmp_path: Path, place: str) -> None:
    """A gc sweeps what lies in ``staging/`` and ``trash/``, an acknowledged checkpoint of such a store, too."""
    with Store.init(tmp_path / "store") as store:
        store.save({"w": b"1"}, step=1, run="run")
        for make in (Store.init, Store.open_or_init, partial(Store.clone, tmp_path / "store")):
            with pytest.raises(BadInput, match="is in the store"):
                make(tmp_path / "store" / place)
        store.gc()

        assert not (tmp_path / "store" / place).exists()


def test_a_file_is_said_to_be_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("pass")

    with pytest.raises(StoreNotFound, match=r"there is no store at .*train\.py") as caught:
        Store.open(path)
    assert caught.value.hint == "a store is a directory, and this is not one"
    with pytest.raises(BadInput, match=r"no store could be made at .*train\.py: Not a directory") as refused:
        Store.open_or_init(path)
    assert refused.value.hint == caught.value.hint
    assert path.read_text() == "pass"


@pytest.mark.usefixtures("no_common_locks")
def test_who_fails_while_another_host_makes_the_store_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    try_links = probe.try_links

    def full(*_: object) -> None:
        monkeypatch.setattr(probe, "try_links", try_links)
        assert create(root)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(probe, "try_links", full)

    assert not create(root)
    assert all(folder.path.is_dir() for folder in Layout(root).directories)
    check_clean(root)


def test_a_store_below_a_directory_that_its_owner_may_not_read() -> None:
    require_root()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o733)
        closed = [folder for folder in Path(name).parents if not folder.stat().st_mode & 0o001]
        require(not closed, f"others cannot come to {name} through {closed}")
        child = os.fork()
        if child == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                with pytest.raises(PermissionError):
                    os.listdir(name)
                made = create(Path(name, "store")), create(Path(name, "store"))
                os._exit(0 if made == (True, False) else 2)
            except BaseException:
                traceback.print_exc()
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ------------------------------------------------------------------------------- missing parents

PARENT_STEPS = [*STEPS, (os, "mkdir"), (files, "sync_name")]


def fail_at(at: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the `at`-th step of a maker fail; return the list of the steps, which grows."""
    seen: list[str] = []
    depth = 0

    def failing(original: Any, name: str) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal depth
            if depth == 0:  # a step in a step is not one of its own
                seen.append(name)
                if len(seen) == at:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            depth += 1
            try:
                return original(*args, **given)
            finally:
                depth -= 1

        return call

    for owner, name in PARENT_STEPS:
        monkeypatch.setattr(owner, name, failing(getattr(owner, name), name))
    return seen


def test_missing_parents_are_made_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        Store.init(tmp_path / "a" / "b" / "store").close()
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o750, 0o750]
    assert (tmp_path / "a" / "b" / "store").stat().st_mode & 0o777 == 0o700
    check_clean(tmp_path / "a" / "b" / "store")


def test_each_new_directory_is_durable_before_anything_is_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, Path]] = []
    mkdir, sync_directory = os.mkdir, files.sync_directory

    def noted_mkdir(path: Any, *args: Any, **given: Any) -> None:
        mkdir(path, *args, **given)
        order.append(("made", Path(path)))

    def noted_sync(path: Any) -> None:
        sync_directory(path)
        order.append(("synced", Path(str(path))))

    monkeypatch.setattr(os, "mkdir", noted_mkdir)
    monkeypatch.setattr(files, "sync_directory", noted_sync)
    left = tmp_path / "left by a maker that died"
    left.mkdir()
    order.clear()
    Store.init(left / "a" / "b" / "store").close()

    a, b = left / "a", left / "a" / "b"
    assert order[:5] == [("synced", tmp_path), ("made", a), ("synced", left), ("made", b), ("synced", a)]
    assert ("synced", b) in order[5:]


@pytest.mark.parametrize("there", ["", "a"])
def test_a_maker_that_fails_at_any_step_leaves_nothing_or_a_store(tmp_path: Path, there: str) -> None:
    for at in itertools.count(1):
        top = tmp_path / str(at)
        (top / there).mkdir(parents=True)
        before = sorted(top.rglob("*"))
        with pytest.MonkeyPatch.context() as monkeypatch:
            seen = fail_at(at, monkeypatch)
            try:
                create(top / "a" / "b" / "store")
            except OSError as error:
                failed: OSError | None = error
            else:
                failed = None

        if not (top / "a" / "b" / "store" / "store.json").exists():
            assert failed
            if seen[at - 1] not in {"unlink", "remove_directory"}:  # what cannot be removed stays
                assert sorted(top.rglob("*")) == before, f"at step {at}, {seen[at - 1]}"
        Store.open_or_init(top / "a" / "b" / "store").close()
        if len(seen) < at:
            break
    assert at > 25


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_maker_that_fails_keeps_no_other_process_from_it(tmp_path: Path, before: bool) -> None:
    """One that failed removes the empty directories that it made, at each step of one that has found them."""
    for at in itertools.count(1):
        root = tmp_path / str(at) / "a" / "b" / "store"
        root.mkdir(parents=True)

        def meanwhile(root: Path = root) -> None:
            for folder in (root, *root.parents[:3]):
                with suppress(OSError):
                    folder.rmdir()

        made, there = run_with(partial(create, root), meanwhile, at, before=before, steps=PARENT_STEPS)

        assert made
        check_clean(root)
        if not there:
            break
    assert at > 25


def test_what_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, hint in {
        errno.EACCES: "choose a place in a directory that you may write to",
        errno.EROFS: "choose a place in a directory that you may write to",
        errno.EIO: "the operating system reported the cause above",
    }.items():

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", fail)
            with pytest.raises(BadInput, match="no store could be made at") as refused:
                Store.open_or_init(tmp_path / "a" / "store")

        assert refused.value.hint == hint


def test_open_or_init_says_that_it_made_a_store_and_which_one_has_a_similar_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ckstore")
    Store.open_or_init(tmp_path / "checkpoints-1")
    Store.open_or_init(tmp_path / "checkpoints-2")
    (tmp_path / "Checkpoint-1").mkdir()  # no store

    assert [record.getMessage() for record in caplog.records] == [
        f"created a new store at {tmp_path}/checkpoints-{number}" for number in (1, 2)
    ]
    with pytest.warns(CkstoreWarning) as told:
        Store.open_or_init(tmp_path / "checkpoint-1")
    assert [str(one.message) for one in told] == [
        (
            f"created a new store at {tmp_path}/checkpoint-1. {tmp_path}/checkpoints-1 is also a store; if you want "
            "that one, open it"
        )
    ]
    Store.open_or_init(tmp_path / "checkpoint-1")
    for name in ("checkpoint-1", "checkpoints-1"):
        check_store(tmp_path / name)


@pytest.mark.parametrize(
    "name, others, similar",
    [
        ("runs.ck", ["run.ck", "models", "RUNS_ck"], ["RUNS_ck", "run.ck"]),
        ("exp-lr1e3", ["exp-lr1e4", "exp-lr1e-3", "exp-lr1e3"], ["exp-lr1e-3"]),
        ("a", ["b", "ab"], []),
    ],
)
def test_names_are_similar_but_for_those_that_differ_in_a_number(
    name: str, others: list[str], similar: list[str]
) -> None:
    assert similar_names(name, others) == similar
