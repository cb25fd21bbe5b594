"""Count the files and system calls of one save of many medium tensors: ``python -m tests.bench.packs``.

Each tensor has 1 to 3 MiB. The same state is saved with blobs of their own for these tensors, and with packs. With
``--mixes``, a state of each mix of `tests.bench.mixes` is saved, and the processor time and memory of a save without
strace are printed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from ckstore import Store
from ckstore.model import sizes
from tests.bench.mixes import MIXES, sizes_of
from tests.bench.sizes import size

_CALL = re.compile(r"^\d+ +(\w+)\(")
_BEGIN, _END = "/ckstore-counts-from-here", "/ckstore-counts-to-here"
_SYNCS = ("fsync", "fdatasync")


def count(folder: Path, state_bytes: int, medium_below_bytes: int, mix: str = "") -> Counter[str]:
    """Return how often one save made each system call, with its new blobs as ``blobs``.

    Args:
        folder: An existing directory on the filesystem to save to.
        state_bytes: The least size of the state.
        medium_below_bytes: The size below which storages share packs in a state with many of them.
        mix: The mix of sizes; if empty, tensors of 1 to 3 MiB.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        log = Path(place, "calls")
        command = ["strace", "-f", "-q", "-s", "64", "-o", str(log)]
        command += [*_saving(Path(place, "store"), state_bytes, mix), "--below", str(medium_below_bytes)]
        subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
        found: Counter[str] = Counter()
        counts = False
        for line in log.read_text(errors="replace").splitlines():
            if _BEGIN in line or _END in line:
                counts = _BEGIN in line
            elif counts and (call := _CALL.match(line)) is not None:
                found[call[1]] += 1
        found["blobs"] = sum(1 for _ in Path(place, "store/blobs").rglob("*-*")) - 1  # without that of the first save
        return found


def _saving(store: Path, state_bytes: int, mix: str) -> list[str]:
    command = [sys.executable, "-m", "tests.bench.packs", "--save", str(store), "--size", str(state_bytes)]
    return [*command, "--mix", mix] if mix else command


def _save(path: Path, state_bytes: int, mix: str) -> None:
    torch.set_num_threads(1)
    state: dict[str, torch.Tensor] = {}
    for nbytes in sizes_of(mix, state_bytes) if mix else _one_to_three(state_bytes):
        state[f"t{len(state):05}"] = torch.randn(nbytes // 4)
    with Store.init(path) as store:
        store.save({"w": torch.zeros(4)}, run="first")  # what a process does once is not counted
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is now the present size
        before_bytes, cpu_s = _peak_bytes(), time.process_time()
        os.access(_BEGIN, os.F_OK)
        store.save(state)
        os.access(_END, os.F_OK)
        print(json.dumps([_peak_bytes() - before_bytes, time.process_time() - cpu_s]))


def _one_to_three(state_bytes: int) -> Iterator[int]:
    drawing = random.Random(58)
    while state_bytes > 0:
        yield (nbytes := drawing.randrange(2**20, 3 * 2**20) // 4 * 4)
        state_bytes -= nbytes


def _peak_bytes() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"), re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _print_mixes(folder: Path, state_bytes: int) -> None:
    print("| Mix | files | fsyncs | system calls | futex | processor, s/GB | memory, MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for mix in MIXES:
        found = count(folder, state_bytes, sizes.MEDIUM_BELOW_BYTES, mix)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            done = subprocess.run(_saving(Path(place, "store"), state_bytes, mix), check=True, capture_output=True)
        memory_bytes, cpu_s = json.loads(done.stdout)
        calls = found.total() - found["blobs"]
        cells = [f"{found['blobs']:,}", f"{sum(found[one] for one in _SYNCS):,}", f"{calls:,}", f"{found['futex']:,}"]
        cells += [f"{cpu_s / state_bytes * 1e9:.2f}", f"{memory_bytes / 2**20:.0f}"]
        print(f"| {mix} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where to save")
    parser.add_argument("--size", type=size, default=256 * 2**20, help="of the state")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)  # the process that is counted
    parser.add_argument("--mixes", action="store_true", help="save a state of each mix")
    parser.add_argument("--mix", default="", help=argparse.SUPPRESS)
    parser.add_argument("--below", type=int, default=sizes.MEDIUM_BELOW_BYTES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save is not None:
        vars(sizes)["MEDIUM_BELOW_BYTES"] = options.below
        _save(options.save, options.size, options.mix)
        return
    options.dir.mkdir(exist_ok=True)
    if options.mixes:
        _print_mixes(options.dir, options.size)
        return
    own, packs = (count(options.dir, options.size, below) for below in (2**20, sizes.MEDIUM_BELOW_BYTES))
    print("| | own blobs | packs |\n| --- | --- | --- |")
    for name, names in (("blobs", ("blobs",)), ("fsyncs", _SYNCS), ("of these futex", ("futex",))):
        if name == "of these futex":
            print(f"| system calls | {own.total() - own['blobs']:,} | {packs.total() - packs['blobs']:,} |")
        print(f"| {name} | {sum(own[one] for one in names):,} | {sum(packs[one] for one in names):,} |")


if __name__ == "__main__":
    main()
