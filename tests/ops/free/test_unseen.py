"""Gc where processes cannot be looked at: it says so, and frees only what the kernel itself calls free."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.holding import holding
from tests.support.requirements import require_program, require_root
from tests.support.users import common_folder, users

MIB = 2**20
ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("every_process")

_GC = """
import json, sys, warnings
from ckstore import Store
warnings.simplefilter("ignore")
catalog = sys.argv[2] or None
store = Store(sys.argv[1], catalog_path=catalog)
plan = store.gc(dry_run=True)
report = store.gc(exclusive=bool(catalog))
why = [blob.why for blob in report.held]
print(json.dumps([report.unseen_processes, plan.freed_count, report.freed_count, len(report.held), why]))
"""

_SHOW = "print(json.dumps([r.unseen_processes]))"


def made(path: Path, catalog: str | None = None) -> Path:
    """A store with a blob that no checkpoint uses; return the blob."""
    with Store.init(path, catalog_path=catalog) as store:
        store.save({"w": np.arange(MIB, dtype=np.uint8)}, step=1)
        store.save({"w": np.arange(MIB, dtype=np.uint8) + 1}, step=2)
        (blob,) = blobs_dir(path, "main", 1).iterdir()
        with holding("read", blob), pytest.MonkeyPatch.context() as patch:
            patch.setattr("ckstore.ops.free.drop.warn", lambda _: None)
            store.delete(1)
    (left,) = path.rglob(f"blobs/*/{blob.name}")
    return left


def collected(hiding: str, store: Path, catalog: str = "") -> list[Any]:
    """Run gc in a namespace of mounts in which a shell script hides something."""
    require_root()
    require_program("unshare")
    script = f'{hiding}\nexec "$@"'
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", _GC, str(store), catalog]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout)
    return told


def test_without_proc_gc_goes_by_the_lease_and_says_that_no_process_was_seen(tmp_path: Path) -> None:
    blob = made(tmp_path / "store")
    with holding("read", blob):
        assert collected("mount -t tmpfs none /proc", tmp_path / "store") == [None, 0, 0, 1, [""]]

    assert collected("mount -t tmpfs none /proc", tmp_path / "store") == [None, 1, 1, 0, []]
    assert not blob.exists()


def test_without_proc_an_exclusive_gc_on_a_shared_filesystem_frees_nothing(tmp_path: Path) -> None:
    """There a lease says nothing either."""
    catalog = str(tmp_path / "its.db")
    blob = made(tmp_path / "store", catalog)

    told = collected("mount -t tmpfs none /proc", tmp_path / "store", catalog)

    assert told == [None, 0, 0, 1, ["without /proc, gc cannot see which process has it open"]]
    assert blob.exists()
    assert Store(tmp_path / "store", catalog_path=catalog).gc(exclusive=True).freed_count == 1


def test_where_other_users_processes_are_hidden_it_is_not_said_that_all_were_seen() -> None:
    with common_folder() as folder:
        one, _ = users(folder)
        store = one.home / "store"
        assert one.ckstore("init", store).returncode == 0
        one.python(
            "import sys; from ckstore import Store; store = Store(sys.argv[1]);"
            "[store.save({'x': bytes([step] * 9000)}, step=step) for step in range(2)]",
            store,
        )
        (blob,) = blobs_dir(store, "main", 0).iterdir()
        code = f"import json, sys; from ckstore import Store; r = Store(sys.argv[1]).gc(); {_SHOW}"
        hidden = replace(one, reach=f"{one.reach}mount -t proc -o hidepid=2 none /proc\n")
        with one.start(
            sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(1, flush=True); input()", blob
        ) as it:
            assert it.stdout is not None
            it.stdout.readline()
            one.python("import sys; from ckstore import Store; Store(sys.argv[1]).delete(0, now=True)", store)
            said = hidden.ckstore("gc", "--store", store)
            counts = hidden.python(code, store) + one.python(code, store)
            it.communicate("\n")

        assert "cannot see which processes have files open" in said.stdout
        assert counts[0] is None
        assert counts[1] > 0
