"""``python -m tests.bench.against COMMIT``: compare saves, loads and gc with those of another commit.

Both commits run the same program, which only uses ``Store.init``, ``save``, ``load``, ``delete`` and ``gc``, in a new
process and a new store a round. The two processes take turns, one act each, so that other work on the machine slows
both. The filesystem is
an ext4 with a journal on a loop device, which needs root; ``--dir`` names another place. The last round runs under
strace and only counts the calls that make something durable.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.places import given, on_loops

_ROOT = Path(__file__).resolve().parents[2]
_IMAGE_BYTES = 6 * 2**30
_TIMEOUT_S = 900.0
_SYNCS = "fsync,fdatasync,sync_file_range,syncfs,msync"

_PROGRAM = """
import json, os, sys, time
import torch
from ckstore import Store

torch.set_num_threads(1)
path, kind, health = sys.argv[1:]
torch.manual_seed(0)
if kind in ("large", "load large"):
    state = {f"layer{i}": torch.randn(2**23) for i in range(8)}
elif kind == "medium":
    state = {f"layer{i}": torch.randn(2**20) for i in range(64)}
elif kind == "unchanged":
    state = {f"layer{i}": torch.randn(2**17) for i in range(128)}
else:
    state = {f"layer{i}": torch.randn(64) for i in range(50)}
store = Store.init(path)
if "health_share" in dir(store.config) and not int(health):
    store.config.health_share = 0.0
store.save(state, step=0)
os.access("/ckstore-bench/begin/x", os.F_OK)
for step, _ in enumerate(sys.stdin, 1):
    if kind not in ("unchanged", "load small", "load large"):
        for value in state.values():
            value += 1
    options = {"step": 0, "if_exists": "replace"} if kind == "replacing" else {"step": step}
    if kind == "gc":
        for number in range(10):
            state["layer0"] += 1
            store.save(state, step=100 * step + number)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    if kind.startswith("load"):
        store.load()
    elif kind == "gc":
        for number in range(9):
            store.delete(100 * step + number)
        store.gc(now=True)
    else:
        store.save(state, **options)
    took = {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
    print(json.dumps(took), flush=True)
os.access("/ckstore-bench/end/x", os.F_OK)
store.close()
"""
_KINDS = {
    "small": ("new steps of 50 tensors of 256 bytes", 50),
    "replacing": ("one step again and again, 50 tensors of 256 bytes", 50),
    "unchanged": ("new steps of unchanged 128 tensors of 512 KiB", 30),
    "medium": ("new steps of 64 tensors of 4 MiB, all changed", 4),
    "large": ("new steps of 8 tensors of 32 MiB, all changed", 4),
    "load small": ("loads of 50 tensors of 256 bytes", 50),
    "load large": ("loads of 8 tensors of 32 MiB", 8),
    "gc": ("deleting 9 small checkpoints, then gc", 10),
}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.against", description=__doc__)
    parser.add_argument("commit", help="to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=_KINDS, action="append", help="a kind of act; default: all")
    parser.add_argument("--no-health", action="store_true", help="without the search for NaN and infinite values")
    parser.add_argument("--dir", type=Path, default=None, help="measure in this directory; default: a loop device")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ckstore-against-", dir="/var/tmp") as folder:
        place = given(options.dir, 0) if options.dir else on_loops(Path(folder), _IMAGE_BYTES, 0)
        with place as where, _checked_out(options.commit, Path(folder)) as other:
            print("| acts | wall, ms | of the other | CPU, ms | of the other | durable calls | those of the other |")
            print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
            for kind in options.only or _KINDS:
                program = ("-c", _PROGRAM, kind, str(int(not options.no_health)))
                words, acts = _KINDS[kind]
                rounds = [_round((_ROOT, other), where.path, program, acts) for _ in range(options.rounds)]
                calls = [_durable_calls(tree, where.path, program, acts) for tree in (_ROOT, other)]
                times = f"{_cells(rounds, 'wall_s')} | {_cells(rounds, 'cpu_s')}"
                print(f"| {words} | {times} | {calls[0]:.1f} | {calls[1]:.1f} |", flush=True)
    return 0


@contextmanager
def _checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Give a working tree of a commit."""
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=_ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=_ROOT, check=True)


def _round(trees: Sequence[Path], folder: Path, program: Sequence[str], acts: int) -> list[dict[str, float]]:
    """Return the median wall and processor seconds of the acts of each tree's process, which take turns."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_program(tree, folder / f"store{i}", program)) for i, tree in enumerate(trees)]
        took: list[list[dict[str, float]]] = [[] for _ in trees]
        for number in range(acts):
            for i in range(len(trees)) if number % 2 else reversed(range(len(trees))):
                took[i].append(_act_once(processes[i]))
    return [{unit: statistics.median(one[unit] for one in of_tree) for unit in of_tree[0]} for of_tree in took]


@contextmanager
def _program(tree: Path, store: Path, program: Sequence[str], *tracer: str) -> Iterator[subprocess.Popen[str]]:
    """Give a process that acts on a new store once for each line that it reads."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / name) for name in (".", "cli", "migrations"))}
    command = [*tracer, sys.executable, "-W", "ignore", *program[:2], str(store), *program[2:]]
    try:
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            watchdog = threading.Timer(_TIMEOUT_S, process.kill)
            watchdog.start()
            try:
                yield process
                process.communicate()  # its input ends, and so does the program
            finally:
                process.kill()
                watchdog.cancel()
    finally:
        shutil.rmtree(store, ignore_errors=True)
        os.sync()  # what one leaves to write must not cost the next


def _act_once(process: subprocess.Popen[str]) -> dict[str, float]:
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes")
    process.stdin.write("act\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"the process has ended with status {process.wait(_TIMEOUT_S)}; its error is above")
    took: dict[str, float] = json.loads(line)
    return took


def _durable_calls(tree: Path, folder: Path, program: Sequence[str], acts: int) -> float:
    """Return how many calls that make something durable one act makes."""
    with tempfile.TemporaryDirectory(prefix="ckstore-trace-") as logs:
        log = Path(logs) / "log"
        strace = ("strace", "-f", "--seccomp-bpf", "-q", "-o", str(log))
        traced = ("-e", f"trace=?access,?faccessat,?faccessat2,{_SYNCS}")
        with _program(tree, folder / "store", program, *strace, *traced) as process:
            for _ in range(acts):
                _act_once(process)
        text = log.read_text(errors="replace")
    between = text.partition("/ckstore-bench/begin")[2].partition("/ckstore-bench/end")[0]
    return len(re.findall(rf"^\d+ +(?:{_SYNCS.replace(',', '|')})\(", between, re.MULTILINE)) / acts


def _cells(rounds: Sequence[Sequence[dict[str, float]]], unit: str) -> str:
    """Return the median of the rounds and its ratio to the other commit's, with the lowest and highest ratio."""
    ratios = [here[unit] / other[unit] for here, other in rounds]
    here_ms = 1000 * statistics.median(here[unit] for here, _ in rounds)
    return f"{here_ms:.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
