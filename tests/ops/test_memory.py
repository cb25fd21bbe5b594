"""What does not fit into memory is refused with an error of ckstore, and the process goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.model.manifest.manifest import LeafKind
from ckstore.tensors.state_restore import allocate

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 120.0

NBYTES = 128 * 2**20

PROGRAM = """
import json, resource
import torch
from ckstore import Store
from ckstore.errors import CkstoreError

NBYTES = 128 * 2**20
store = Store.open("store")
store.load(0)


def inside(step, read):
    with store.open_checkpoint(step) as checkpoint:
        return read(checkpoint)


ACTS = {
    "load torch": lambda: store.load(1),
    "load numpy": lambda: store.load(2),
    "load bytes": lambda: store.load(3),
    "load mapped": lambda: store.load(1, mmap=True),
    "one tensor": lambda: inside(1, lambda checkpoint: checkpoint["torch"]),
    "a slice": lambda: inside(2, lambda checkpoint: checkpoint.slice("numpy")[:]),
    "load of an open one": lambda: inside(3, lambda checkpoint: checkpoint.load()),
    "load latest-valid": lambda: store.load("latest-valid"),
}
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + NBYTES // 2, resource.RLIM_INFINITY))
said = {}
for name, act in ACTS.items():
    try:
        act()
        said[name] = "done"
    except CkstoreError as error:
        said[name] = str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = [len(store.load(step)) for step in (1, 2, 3)]
print(json.dumps({"said": said, "again": again}))
"""


def test_a_checkpoint_that_is_larger_than_memory_is_refused_and_the_process_goes_on(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"torch": torch.zeros(1), "numpy": np.zeros(1)}, 0)
        store.save({"torch": torch.zeros(NBYTES, dtype=torch.uint8)}, 1)
        store.save({"numpy": np.ones(NBYTES, np.uint8)}, 2)
        store.save({"bytes": b"2" * NBYTES}, 3)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{_ROOT}:{_ROOT}/migrations", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [name for name, said in found["said"].items() if "memory" not in said.lower()] == []
    assert found["again"] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["torch", "numpy", "bytes", "str"])
@pytest.mark.parametrize("exponent", [62, 63, 64, 80])
def test_no_number_of_bytes_gives_another_error_than_that_of_memory(kind: LeafKind, exponent: int) -> None:
    with pytest.raises(MemoryError, match=f"{2**exponent} bytes"):
        allocate(kind, 2**exponent)
