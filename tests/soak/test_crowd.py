"""Two processes save, one collects, one reads with mappings: nothing fails, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from tests.soak.actors import KEEP_LAST, MIB, same
from tests.support.requirements import SOAK_S
from tests.support.stores import check_store

pytestmark = [
    pytest.mark.soak,
    pytest.mark.root,
    # The crowd of test_kills does the same and more; `make soak` has both.
    *([] if "CKSTORE_SOAK_S" in os.environ else [pytest.mark.whole]),
]

_ROOT = Path(__file__).parents[2]
_CROWD = ("saver", "saver", "collector", "reader")
_LATE_S = 120.0
"""How long after its time a process may still be busy, on a machine that others use too."""


def crowd(path: Path, seconds: float) -> list[dict[str, Any]]:
    """Let the crowd work in the store at `path`; return what each says that it did."""
    command = [sys.executable, "-m", "tests.soak.actors"]
    processes = [
        subprocess.Popen(
            [*command, role, str(path), str(seconds), str(seed)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, role in enumerate(_CROWD)
    ]
    try:
        ended = [process.communicate(timeout=seconds + _LATE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for role, process, (_, told) in zip(_CROWD, processes, ended, strict=True):
        assert process.returncode == 0, f"{role}: {told}"
    return [json.loads(said) for said, _ in ended]


@pytest.mark.timeout(0)
def test_savers_a_collector_and_a_reader_go_on_side_by_side(
    journaled_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journaled_tmp_path / "store"
    Store.init(path, chunk_bytes=MIB).close()

    did = crowd(path, SOAK_S)

    with capsys.disabled():
        print(f"\n{SOAK_S:.0f} s: {did}", flush=True)
    savers, (collector, reader) = did[:2], did[2:]
    assert all(each["saves"] > 2 * KEEP_LAST for each in savers)
    assert collector["freed"] > 0
    assert reader["mapped"] > 0
    assert reader["opened"] > 0
    with Store.open(path) as store:
        infos = store.checkpoints()
        assert len(infos) >= 2 * KEEP_LAST
        for info in infos:
            assert same(store.load(info), info.run, info.step), info.name
        for run, each in zip("ab", savers, strict=True):
            newest = [info.step for info in infos if info.run == run][-KEEP_LAST:]
            assert newest == list(range(each["last"] - KEEP_LAST + 1, each["last"] + 1))
        report = store.gc()
        assert (report.held, report.linked_outside, report.trash_left) == ((), (), ())
    check_store(path)
