"""Where names that differ only in case are the same: refused for writing, and what is read is what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckstore import CkstoreWarning, Store
from ckstore.errors import CkstoreError, NoSuchRef, NoWholeCheckpoint, UnsafePlace
from ckstore.fs.host import probe
from tests.support.requirements import require_fuse, require_root
from tests.support.shared_folder import shared_folder


@contextmanager
def shown(folder: Path, lacks: str) -> Iterator[Path]:
    require_root()
    require_fuse()
    with shared_folder(folder, folder.with_name("shown"), "bindfs", lacks=lacks) as mount:
        yield mount


def everything(folder: Path) -> list[str]:
    """Return the names in a store, but for what opening for writing makes durable or keeps back."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "catalog.db" not in path.name)


@pytest.mark.parametrize("lacks", ["case", "case in checkpoints", "case in refs"])
def test_a_store_is_not_written_where_case_makes_no_difference(lacks: str, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    with Store.init(real / "store") as store:
        store.save({"x": 1}, step=1, run="A", tags=["T"])
    before = everything(real)
    with shown(real, lacks) as mount:
        with pytest.raises(UnsafePlace, match="names that differ only in case are the same") as refused:
            Store(mount / "store")
        with pytest.raises(UnsafePlace, match="names that differ only in case are the same"):
            Store.init(mount / "new")

        assert "chattr -F" in refused.value.hint
        assert Store(mount / "store", readonly=True).load("A@1") == {"x": 1}
        with pytest.raises(CkstoreError):
            Store(mount / "store")
    assert [name for name in everything(real) if not name.startswith("new")] == before


def test_reading_there_gives_what_was_asked_for_or_nothing(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    with Store.init(real / "store") as store:
        store.save({"x": 1}, step=1, run="A", tags=["best"])
    with shown(real, "case") as mount, Store(mount / "store", readonly=True) as store:
        assert store.load("best") == store.load("A@1") == {"x": 1}
        for ref in ("a@1", "BEST", "a@best"):
            with pytest.raises(NoSuchRef):
                store.load(ref)
        with pytest.raises(NoWholeCheckpoint, match="its manifest is that of A@1"):
            store.load("a@latest")
        with pytest.warns(CkstoreWarning, match="its manifest is that of A@1"):
            assert store.checkpoints("a") == []
        assert [info.name for info in store.checkpoints()] == ["A@1"]


def test_a_trial_of_case_leaves_nothing(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        before = everything(tmp_path / "store")
        layout = store._context.layout
        probe.try_links(layout.staging, layout.linked)

        assert everything(tmp_path / "store") == before
