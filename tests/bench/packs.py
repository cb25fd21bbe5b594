"""Count the files and system calls of one save of many medium tensors: ``python -m tests.bench.packs``.

Each tensor has 1 to 3 MiB. The same state is saved with blobs of their own for these tensors, and with packs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from ckstore import Store
from ckstore.model import sizes
from tests.bench.sizes import size

_CALL = re.compile(r"^\d+ +(\w+)\(")
_BEGIN, _END = "/ckstore-counts-from-here", "/ckstore-counts-to-here"
_SYNCS = ("fsync", "fdatasync")


def count(folder: Path, state_bytes: int, medium_below_bytes: int) -> Counter[str]:
    """Return how often one save made each system call, with its new blobs as ``blobs``.

    Args:
        folder: An existing directory on the filesystem to save to.
        state_bytes: The least size of the state.
        medium_below_bytes: The size below which storages share packs in a state with many of them.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        log = Path(place, "calls")
        command = ["strace", "-f", "-q", "-s", "64", "-o", str(log)]
        command += [sys.executable, "-m", "tests.bench.packs", "--save", f"{place}/store"]
        command += ["--size", str(state_bytes), "--below", str(medium_below_bytes)]
        subprocess.run(command, check=True, timeout=600)
        found: Counter[str] = Counter()
        counts = False
        for line in log.read_text(errors="replace").splitlines():
            if _BEGIN in line or _END in line:
                counts = _BEGIN in line
            elif counts and (call := _CALL.match(line)) is not None:
                found[call[1]] += 1
        found["blobs"] = sum(1 for _ in Path(place, "store/blobs").rglob("*-*")) - 1  # without that of the first save
        return found


def _save(path: Path, state_bytes: int) -> None:
    torch.set_num_threads(1)
    drawing = random.Random(58)
    state: dict[str, torch.Tensor] = {}
    nbytes = 0
    while nbytes < state_bytes:
        made = torch.randn(drawing.randrange(2**20, 3 * 2**20) // 4)
        state[f"t{len(state)}"] = made
        nbytes += made.nbytes
    with Store.init(path) as store:
        store.save({"w": torch.zeros(4)}, run="first")  # what a process does once is not counted
        os.access(_BEGIN, os.F_OK)
        store.save(state)
        os.access(_END, os.F_OK)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where to save")
    parser.add_argument("--size", type=size, default=256 * 2**20, help="of the state")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)  # the process that is counted
    parser.add_argument("--below", type=int, default=sizes.MEDIUM_BELOW_BYTES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save is not None:
        vars(sizes)["MEDIUM_BELOW_BYTES"] = options.below
        _save(options.save, options.size)
        return
    options.dir.mkdir(exist_ok=True)
    own, packs = (count(options.dir, options.size, below) for below in (2**20, sizes.MEDIUM_BELOW_BYTES))
    print("| | own blobs | packs |\n| --- | --- | --- |")
    for name, names in (("blobs", ("blobs",)), ("fsyncs", _SYNCS), ("of these futex", ("futex",))):
        if name == "of these futex":
            print(f"| system calls | {own.total() - own['blobs']:,} | {packs.total() - packs['blobs']:,} |")
        print(f"| {name} | {sum(own[one] for one in names):,} | {sum(packs[one] for one in names):,} |")


if __name__ == "__main__":
    main()
