"""On a disk that fails, every public method that reads raises an error of ckstore, and no other.

``CKSTORE_CRASH=full`` lets every call fail in every way, else one in 67 of a third of the methods, in two of the ways;
the counts are printed. What is tried is in `reading.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.ops.read.open_checkpoint import OpenCheckpoint
from tests.faults.reading import ACTS
from tests.faults.shim import built
from tests.support.coverage import covered, sample_seed
from tests.support.requirements import CRASH_FULL

pytestmark = pytest.mark.crash

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 14_400.0 if CRASH_FULL else 1_500.0
_ONE_IN = 1 if CRASH_FULL else 67
_PARTS = 12 if CRASH_FULL else 1
"""Each can be run alone, and by a worker of its own."""


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_call_that_fails_gives_an_error_of_ckstore(
    part: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = sample_seed()
    acts = [*ACTS][part::_PARTS] if seed is None else [*ACTS][seed % 3 :: 3]
    paths = [str(_ROOT), str(_ROOT / "cli"), str(_ROOT / "migrations")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.reading", tmp_path / "store", tmp_path / "calls", str(_ONE_IN), *acts],
        env={**os.environ, "LD_PRELOAD": str(built()), "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = [f"{act}: {line}" for act, outcome in found.items() for line in outcome["wrong"]]
    calls = sum(outcome["hits"] for outcome in found.values())
    line = covered("failing reads", f"part {part}", violations=len(wrong), acts=len(found), calls=calls)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    assert wrong == []
    assert [*found] == acts
    assert all(outcome["hits"] for outcome in found.values())


def test_no_method_that_reads_is_left_out() -> None:
    changing = {
        *("save", "commit", "delete", "gc", "reindex", "tag", "untag", "pin", "unpin", "annotate", "prune"),
        *("save_async", "compact", "undo", "rename_run", "migrate", "touch"),
    }
    background = {"savers"}  # tests/saver
    apart = {"verify_export"}  # tests/ops/read/test_export_sums.py
    remotes = {"push", "pull", "evict", "clone", "remotes", "mirror_status"}  # tests/remote
    quick = {"warnings", "settings", "config", "close", "init", "open_or_init", "write_metrics"}
    methods = (
        {name for name in vars(Store) if not name.startswith("_")} - changing - quick - background - remotes - apart
    )
    inside = {name for name in vars(OpenCheckpoint) if not name.startswith("_")}
    tried = {name.partition(" ")[0] for name in ACTS} | {"latest", "export_safetensors"}

    assert methods <= tried | {"open"}
    properties = {"directory", "kept_bytes", "saved_bytes", "health"}
    assert inside <= {"keys", "leaves", "files", "close", "slice", "load", "open_file"} | properties
