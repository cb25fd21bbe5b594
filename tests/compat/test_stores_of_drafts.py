"""A store of each released draft stays readable, and the first writer converts it. `write_store.py` made them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from tests.compat.write_store import weights
from tests.format import reader
from tests.integrations.dcp_cases import PLACED, whole
from tests.support.draft_stores import draft_names, is_converted
from tests.support.stores import check_store

HERE = Path(__file__).parent
STORES = sorted(HERE.glob("*.tar.gz"))


def unpacked(archive: Path, folder: Path) -> Path:
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", folder], check=True)
    (folder / "store").chmod(0o700)
    return folder / "store"


def check_first(store: Store) -> None:
    """What ``draft-2026-11`` holds, see `tests.compat.write_store.write`."""
    assert store.verify().ok
    assert [info.step for info in sorted(store.checkpoints(), key=lambda info: info.step)] == [1, 2, 3, 4]
    first: Any = store.load("first")
    assert torch.equal(first["model"]["w"], torch.arange(12, dtype=torch.bfloat16).reshape(3, 4))
    assert first["model"]["w"].data_ptr() == first["model"]["tied"].data_ptr()
    assert (first["lr"], first["names"]) == (0.1, ["a", "b"])
    sharded: Any = store.load(2)
    assert all(torch.equal(sharded["model"][name], whole(name)) for name in PLACED)
    assert store.load(3, rank=0) == {"own": 7}
    with tempfile.TemporaryDirectory() as folder:
        store.checkout(4, Path(folder, "out"))
        assert Path(folder, "out", "file.txt").read_text() == "committed"


def check_steps(store: Store) -> None:
    """What ``steps-2026-11`` holds, see `tests.compat.write_store.write_steps`."""
    assert store.verify().ok
    saved = {"main@0": 0, "main@2": 2, "main@3": 3, "main@4": 7, "main@5": 5, "side@5": 9}
    assert {info.name for info in store.checkpoints()} == saved.keys()
    for ref, step in {**saved, "best": 2, "first": 0, "side": 9, "main@latest": 7}.items():
        loaded: Any = store.load(ref)
        assert loaded.keys() == weights(step).keys()
        assert all(torch.equal(value, loaded[name]) for name, value in weights(step).items()), ref
    assert {tag.name: (tag.run, tag.step, tag.dangling) for tag in store.tags()} == {
        "best": ("main", 2, False),
        "first": ("main", 0, False),
        "side": ("side", 5, False),
    }
    assert [(pin.run, pin.step, pin.dangling) for pin in store.pins()] == [("main", 3, False)]
    assert [info.step for info in store.checkpoints("main") if info.compacted] == [2]
    assert [(one.run, one.step) for one in store.undoable()] == [("main", 1)]


CHECKS: dict[str, Callable[[Store], None]] = {"draft-2026-11": check_first, "steps-2026-11": check_steps}


@pytest.mark.filterwarnings("ignore:the catalog", "ignore:Rebuilt the catalog")
@pytest.mark.parametrize("archive", STORES, ids=lambda path: path.name.partition(".")[0])
def test_all_of_it_is_read_by_one_who_may_not_write_and_converted_by_the_first_who_may(
    archive: Path, tmp_path: Path
) -> None:
    check, root = CHECKS[archive.name.partition(".")[0]], unpacked(archive, tmp_path)
    before = {place: one.id for place, one in reader.Store(root).checkpoints().items()}
    drafts = draft_names(root)
    with Store.open(root, readonly=True) as readonly:
        check(readonly)
        assert (draft_names(root), is_converted(root)) == (drafts, False)

        with Store.open(root) as store:
            assert (draft_names(root), is_converted(root)) == ([], True)
            check(store)
        check(readonly)

    seen = reader.Store(root)
    assert {place: one.id for place, one in seen.checkpoints().items()} == before
    assert all(short for _, _, short in seen.tags().values())
    with Store.open(root) as store:
        check(store)
        if waiting := store.undoable():
            assert store.undo().step == waiting[0].step
            loaded: Any = store.load("main@1")
            assert torch.equal(loaded["w"], weights(1)["w"])
        assert store.save({"more": 1}, run="main").step > 4
        store.gc()
    check_store(root)


def test_every_store_has_a_check() -> None:
    assert {path.name.partition(".")[0] for path in STORES} == CHECKS.keys()
