"""Which libraries a state makes us import; each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAVE_AND_LOAD = """
import sys
{setup}
from ckstore.tensors.state_capture import capture
from ckstore.tensors.targets.into import plan_into
from ckstore.tensors.state_restore import allocate
from ckstore.tensors.state_restore import build
state = {state}
captured = capture(state)
def memory(storage):
    source = captured.sources[storage]
    leaf = next(leaf for leaf in captured.leaves if leaf.storage == storage)
    out = allocate(leaf.kind, source.nbytes)
    source.read_into(0, source.nbytes, out.view)
    return out
build(captured.state, captured.leaves, memory)
plan_into({{}}, captured.state, captured.leaves).finish(memory)
for refused in (range(2), object()):
    try:
        capture(refused)
    except ValueError:
        pass
    else:
        raise SystemExit("not refused")
print(*(name for name in ("torch", "numpy", "sqlite_utils") if name in sys.modules))
"""


@pytest.mark.parametrize(
    "setup, state, imported",
    [
        ("", "{'a': [1, 2.5, (None, 'x' * 9999)], 'b': b'x' * 999, 3: 2**99}", ""),
        ("import numpy as np", "{'a': np.arange(3), 'b': np.float32(1), 'c': np.random.get_state()[1]}", "numpy"),
        ("import torch", "{'a': torch.zeros(3)}", "torch numpy"),
    ],
    ids=["plain", "numpy", "torch"],
)
def test_only_what_the_state_is_made_of_is_imported(setup: str, state: str, imported: str) -> None:
    code = SAVE_AND_LOAD.format(setup=setup, state=state)

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == imported.split()


def test_importing_ckstore_imports_none_of_them() -> None:
    code = "import ckstore, ckstore.tensors, sys; print({'torch', 'numpy', 'sqlite_utils'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("set()", "")
