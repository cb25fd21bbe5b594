"""The command that kills the conversion of random stores runs, with a store of an archive and at a few calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from tests.compat.archives import FOLDER, Unpacked, unpack
from tests.compat.migration import settled
from tests.support.draft_stores import leave_gap, make_draft
from tests.support.requirements import require_c_compiler

ROOT = Path(__file__).parents[2]


@pytest.mark.crash
def test_a_conversion_that_is_killed_at_a_call_loses_nothing(tmp_path: Path) -> None:
    require_c_compiler()
    (tmp_path / "stores" / "0").mkdir(parents=True)
    unpack(FOLDER / "35f3e85f" / "labels.tar.xz", tmp_path / "stores" / "0")
    words = ["--stores", str(tmp_path / "stores"), "--count", "1", "--stride", "9", "--catalog-stride", "90"]

    command = [sys.executable, "-m", "tests.compat.migration", *words, "--seed", "0"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 losses" in done.stdout.splitlines()[-1]
    assert "1 stores with 10 checkpoints" in done.stdout.splitlines()[-1]


def test_a_compacted_checkpoint_stays_compacted_while_a_killed_replacement_hides_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.init(root) as store:
        infos = [store.save({"w": np.arange(20_000) // 64 + step}, step, "main") for step in range(2)]
        store.compact(keep_newest=1)
    make_draft(root)
    leave_gap(root, "main", 0)

    listed = {info.name: info.id for info in infos}
    contents = {"listed": listed, "killed": {"name": "main@0", "content": {}}, "undoable": [], "facts": {}}
    made, hidden = settled(Unpacked(root, None, contents))

    assert hidden == {"main@0"}
    assert made.facts("compacted") == {infos[0].id}
