"""``~`` is expanded wherever a path is given."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.model.names import expanded
from tests.support.trees import look


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_store_and_all_that_goes_in_and_out_are_found_in_the_home(home: Path) -> None:
    (home / "files").mkdir()
    (home / "files" / "a").write_bytes(b"x")
    store = Store.init("~/store", catalog_path="~/catalog/c.db")
    store.save({"w": np.arange(3)}, 1)
    store.commit("~/files", 2)
    store.commit([Path("~/files/a")], 3)
    store.checkout(2, "~/out")
    store.export_safetensors(1, "~/exported")
    store.verify(repair_from="~/files")

    assert (home / "catalog" / "c.db").is_file()
    assert look(home / "out") == look(home / "files")
    assert (home / "exported" / "model.safetensors").is_file()
    for path in ("~/store", Path("~/store"), home / "store"):
        opened = Store.open(path, catalog_path="~/catalog/c.db")
        assert opened.path == home / "store"
    assert not os.path.lexists("~")


def test_the_home_of_a_user_who_is_unknown_is_a_name_like_others() -> None:
    assert expanded("~no-such-user-here/x") == Path("~no-such-user-here/x")
