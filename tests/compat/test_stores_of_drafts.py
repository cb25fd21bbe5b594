"""A store of each released draft stays readable. `write_store.py` made them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning, Store
from tests.integrations.dcp_cases import PLACED, whole

STORES = sorted(Path(__file__).parent.glob("*.tar.gz"))


@pytest.mark.parametrize("archive", STORES, ids=lambda path: path.name.partition(".")[0])
def test_all_of_it_loads_and_verifies(archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", tmp_path], check=True)
    (tmp_path / "store").chmod(0o700)
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"):
        store = Store.open(tmp_path / "store")

    assert store.verify().ok
    assert [info.step for info in sorted(store.checkpoints(), key=lambda info: info.step)] == [1, 2, 3, 4]
    first: Any = store.load("first")
    assert torch.equal(first["model"]["w"], torch.arange(12, dtype=torch.bfloat16).reshape(3, 4))
    assert first["model"]["w"].data_ptr() == first["model"]["tied"].data_ptr()
    assert (first["lr"], first["names"]) == (0.1, ["a", "b"])
    sharded: Any = store.load(2)
    assert all(torch.equal(sharded["model"][name], whole(name)) for name in PLACED)
    assert store.load(3, rank=0) == {"own": 7}
    store.checkout(4, tmp_path / "out")
    assert (tmp_path / "out" / "file.txt").read_text() == "committed"
    assert store.save({"more": 1}).step == 5
