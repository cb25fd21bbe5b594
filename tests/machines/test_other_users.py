"""Root in a user's store, a user in root's: no save stops another user's, and what cannot be read is named."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.fs import dirfd_stat
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.requirements import representatives
from tests.support.stores import check_blobs, references_of_manifests
from tests.support.users import User, common_folder, users
from tests.support.warm_python import WarmPython

_PRELUDE = """
import json, os, sys, warnings
import numpy as np
from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import CkstoreError
warnings.simplefilter("ignore")
def state(seed):
    return {"w": np.random.default_rng(seed).integers(0, 256, 2**20, dtype=np.uint8), "frozen": np.arange(9000)}
def names():
    return [info.name for info in store.checkpoints()]
def tell(*values):
    print(json.dumps(values))
store = Store(sys.argv[1], run="r")
"""

Do = Callable[[str], Any]


def state(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """As the user's code has it."""
    return {"w": np.random.default_rng(seed).integers(0, 256, 2**20, dtype=np.uint8), "frozen": np.arange(9000)}


@pytest.fixture(scope="module")
def ann() -> Iterator[tuple[User, WarmPython]]:
    """A user with a warm Python."""
    with common_folder() as folder:
        (user,) = users(folder, 1)
        with WarmPython(user) as python:
            yield user, python


@pytest.fixture
def place(ann: tuple[User, WarmPython]) -> Iterator[Path]:
    """A folder of the user's."""
    user, _ = ann
    with common_folder() as folder:
        os.chown(folder, user.uid, user.uid)
        yield folder


@pytest.fixture
def do(ann: tuple[User, WarmPython], place: Path) -> Do:
    """Runs code as the user, with the store open as `store`; gives what it told."""
    user, python = ann
    python.run(
        user, "import sys; from ckstore import Store; Store.init(sys.argv[1], chunk_bytes=2**20)", place / "store"
    )
    return lambda code: python.run(user, _PRELUDE + code, place / "store")


def owners(store: Path) -> set[tuple[int, int]]:
    """Return the owners and groups of everything in a store."""
    found = {(store.lstat().st_uid, store.lstat().st_gid)}
    for path in store.rglob("*"):
        found.add((path.lstat().st_uid, path.lstat().st_gid))
    return found


def test_all_that_root_makes_in_a_users_store_is_the_users(
    ann: tuple[User, WarmPython], place: Path, do: Do, recwarn: pytest.WarningsRecorder
) -> None:
    user, _ = ann
    do("store.save(state(1), step=1, tags=['mine']); store.save(state(2), step=2)")
    with Store(place / "store", run="r") as store:
        store.save(state(3), step=3, tags=["best"], metrics={"loss": 1.0})
        store.save(state(4), run="other", step=1)
        store.save_async(state(5), step=5).result(60)
        (place / "file.bin").write_bytes(b"x" * 3000)
        store.commit([place / "file.bin"], run="files", step=1)
        store.annotate(3, metrics={"acc": 0.5})
        store.pin(3, "kept")
        store.config.make_room = None
        store.delete("other@1")
        store.gc()
        store.verify()

    assert owners(place / "store") == {(user.uid, user.uid)}
    assert [str(warning.message) for warning in recwarn if "root" in str(warning.message)] == []
    told = do("""
(pin,) = store.pins()
store.unpin(pin.name)
said = [names(), store.load("latest")["w"].tolist() == state(5)["w"].tolist(), store.info(3).metrics]
store.annotate(3, metrics={"acc": 0.7})
store.tag("best", 2)
store.delete(3); store.delete(5)
said += [len(store.gc().held), store.verify().ok, store.save(state(6)).name, store.warnings]
tell(*said)
""")
    assert told[:6] == [
        ["r@1", "r@2", "r@3", "r@5"],
        True,
        {"loss": 1.0, "acc": 0.5},
        0,
        True,
        "r@3",
    ]
    assert [said for said in told[6] if "without a journal" not in said] == []
    check_blobs(place / "store")
    references_of_manifests(place / "store")


def test_the_group_and_the_mode_of_the_store_count_for_what_root_makes(
    ann: tuple[User, WarmPython], place: Path
) -> None:
    user, _ = ann
    store = place / "store"
    Store.init(store).close()
    for path in (store, *store.rglob("*")):
        os.chown(path, user.uid, 70_000)
        if path.is_dir():
            path.chmod(0o2770)
    with Store(store) as opened:
        opened.save(state(1), step=1, tags=["best"])

    assert owners(store) == {(user.uid, 70_000)}
    for path in store.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == 0o2770, path


def test_root_that_may_not_give_files_away_says_so_and_saves(
    place: Path, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    do("store.save(state(1), step=1)")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", refused)
        patch.setattr(os, "chown", refused)
        patch.setattr("ckstore.ops.open.opening.may_give", lambda: False)
        with Store(place / "store", run="r") as store:
            assert any("CAP_CHOWN" in said for said in store.warnings)
            assert store.save(state(2), step=2, tags=["best"]).step == 2

    assert do("tell(names(), store.save(state(3)).name)") == [["r@1"], "r@3"]


def test_whether_this_process_may_give_files_away_is_read_from_the_kernel() -> None:
    assert dirfd_stat.may_give() == (os.geteuid() == 0)


def _checkpoint(store: Path) -> None:
    os.chown(checkpoint_dir(store, "r", 3), 0, 0)


def _run(store: Path) -> None:
    shutil.copytree(store / "checkpoints/r", store / "checkpoints/other", copy_function=os.link)
    (store / "checkpoints/other").chmod(0o700)
    _checkpoint(store)


def _manifest(store: Path) -> None:
    manifest = checkpoint_dir(store, "r", 3) / "manifest.json"
    os.chown(manifest, 0, 0)
    manifest.chmod(0o600)


def _blobs(store: Path) -> None:
    os.chown(blobs_dir(store, "r", 3), 0, 0)


def _mode(store: Path) -> None:
    checkpoint_dir(store, "r", 3).chmod(0)


def _everything_of_an_older_root(store: Path) -> None:
    """What a save by root left before it gave its files away; and one that was killed, and one that was dropped."""
    _checkpoint(store)
    for path in checkpoint_dir(store, "r", 3).rglob("*"):
        if path.is_dir() or path.lstat().st_nlink == 1:
            os.chown(path, 0, 0)
    for blob in blobs_dir(store, "r", 3).iterdir():
        canonical = next((store / "blobs").glob(f"*/{blob.name}"))
        os.chown(blob, 0, 0)
        os.chown(canonical.parent, 0, 0)
    for folder in ("staging/r@9.0123456789ab", "trash/r@9.0123456789ab"):
        (store / folder / "blobs").mkdir(parents=True)
        for path in (store / folder / "blobs", store / folder):
            path.chmod(0o700)


CLOSED = [_checkpoint, _run, _manifest, _blobs, _mode, _everything_of_an_older_root]


_ACTS = """
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    store = Store(sys.argv[1], run="r")
acts = {
    "save": lambda: [store.save(state(3), step=4).name, store.save(state(5)).name],
    "save to another run": lambda: store.save(state(4), run="another", step=1).name,
    "save in the background": lambda: store.save_async(state(6), step=6).result(60).name,
    "list": names,
    "latest": lambda: [store.latest().name, store.info("latest-valid").name],
    "load": lambda: [int(store.load("latest")["frozen"][5]), int(store.load(2)["frozen"][6])],
    "load into": lambda: store.load_into({"w": np.zeros(2**20, np.uint8)}, 2, strict=False) and 1,
    "diff, du, why": lambda: [bool(store.diff(1, 2)), bool(store.du()), bool(store.doctor())],
    "notes": lambda: [store.tag("best", 2).name, store.annotate(2, metrics={"acc": 1.0}).name, bool(store.pin(4, "x"))],
    "delete": lambda: store.delete(1),
    "gc": lambda: list(store.gc().trash_left),
    "verify": lambda: [(report := store.verify()).ok, [one.what for one in report.findings if one.kind == "closed"]],
    "prune": lambda: [info.name for info in store.prune(RetentionPolicy(keep_last=2)).dropped],
    "reindex": lambda: bool(store.reindex()),
    "list again": names,
}
refused = {
    "load it": lambda: store.load(3),
    "save over it": lambda: store.save(state(9), step=3),
    "delete it": lambda: store.delete(3),
    "tag it": lambda: store.tag("t", 3),
}
said = {}
for name, act in {**acts, **refused}.items():
    try:
        said[name] = act()
    except CkstoreError as error:
        said[name] = f"{type(error).__name__}: {error}"
tell(said, [str(one.message) for one in warned if one.category is CkstoreWarning], store.warnings)
"""


@pytest.mark.parametrize(
    "close", representatives(CLOSED, _checkpoint, _run, _manifest), ids=lambda close: close.__name__.strip("_")
)
def test_a_checkpoint_that_is_closed_to_a_user_stops_no_other_one(
    place: Path, do: Do, close: Callable[[Path], None]
) -> None:
    do("for step in (1, 2, 3): store.save(state(step), step=step)")
    before = {path.name for path in blobs_dir(place / "store", "r", 3).iterdir()}
    close(place / "store")

    said, warned, notes = do(_ACTS)

    closed = said["verify"][1]
    held = said.pop("gc")
    if close is _blobs:  # its manifest can be read, so the catalog goes on knowing it until it is built again
        said["list"].remove("r@3")
    assert said == {
        "save": ["r@4", "r@5"],
        "save to another run": "another@1",
        "save in the background": "r@6",
        "list": ["r@1", "r@2", "r@4", "r@5", "r@6"],
        "latest": ["r@6", "r@6"],
        "load": [5, 6],
        "load into": 1,
        "diff, du, why": [True, True, True],
        "notes": ["r@2", "r@2", True],
        "delete": None,
        "verify": [True, closed],
        "prune": [],
        "reindex": True,
        "list again": ["r@2", "r@4", "r@5", "r@6"],
        **{name: said[name] for name in ("load it", "save over it", "delete it", "tag it")},
    }
    owner = "belongs to uid" if close is _mode else "belongs to root (uid 0)"
    assert len(held) == (close is _everything_of_an_older_root)
    for told in (*closed, *warned, *(said[name] for name in ("load it", "save over it", "delete it", "tag it"))):
        assert owner in told
        assert "may not read it" in told
    assert any("checkpoints/r/3" in told for told in closed)
    assert close is _blobs or any("checkpoints/r/3" in told for told in warned)
    assert {*warned} <= {*notes}
    assert said["save over it"].startswith("StepExists")
    assert {path.name for path in blobs_dir(place / "store", "r", 3).iterdir()} == before
    with Store(place / "store", run="r") as store:
        assert (store.load(3)["w"] == state(3)["w"]).all()


def test_a_user_works_in_a_store_that_root_shares_with_a_group_and_root_frees_it(
    ann: tuple[User, WarmPython], place: Path
) -> None:
    user, python = ann
    path = place / "roots"
    path.mkdir()
    os.chown(path, 0, user.uid)
    path.chmod(0o2770)
    with Store.init(path) as store:
        store.save(state(1), step=1, run="r")

    told = python.run(
        user,
        _PRELUDE
        + """
said = [names(), store.save(state(2), step=2).name, store.save_async(state(3), step=3).result(60).name]
store.delete(1)
said += [store.gc().freed_count, store.verify().ok, int(store.load("latest-valid")["frozen"][5])]
tell(*said)
""",
        path,
    )
    assert told == [["r@1"], "r@2", "r@3", 0, True, 5]

    with Store(path, run="r") as store:
        assert store.save(state(4)).name == "r@4"
        store.delete(2)
        assert store.gc().trash_left == ()
        assert store.verify().ok
    check_blobs(path)


def test_a_user_who_may_not_enter_roots_store_is_told_whose_it_is(ann: tuple[User, WarmPython], place: Path) -> None:
    user, python = ann
    with Store.init(place / "roots") as store:
        store.save(state(1), step=1)
    code = """
import json, sys
from ckstore import Store
try:
    Store(sys.argv[1])
except Exception as error:
    print(json.dumps(str(error)))
"""
    assert "Permission denied" in python.run(user, code, place / "roots")
