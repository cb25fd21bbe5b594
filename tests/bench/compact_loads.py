"""Loads of encoded tensors, and saves beside a compaction: ``python -m tests.bench compact --only loads|beside``."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ckstore import Store
from ckstore.codecs.tiles import TILE_BYTES
from ckstore.objects.encoded import Decoder
from ckstore.ops.compact import plan
from tests.bench import page

_DEEPEST = 8
_CHANGED = 0.014
"""Share of the elements that a step of a fine-tune at 3e-6 changes."""
_KINDS = ("float32, every element changed", "bfloat16, 1.4 % changed")
_MIB = 2**20


def loads(nbytes: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Give a row for each kind: a load at depth 1 and through the deepest path, beside one of the plain tensor."""
    for kind in _KINDS:
        folder = tempfile.mkdtemp(prefix="ckstore-loads-")
        try:
            yield {"tensor": kind, "nbytes": nbytes, **_measured(folder, kind, nbytes, rounds)}
        finally:
            shutil.rmtree(folder)


def _measured(folder: str, kind: str, nbytes: int, rounds: int) -> dict[str, Any]:
    path = f"{folder}/store"
    with Store.init(path) as store:
        for step, value in enumerate(_values(kind, nbytes)):
            store.save({"w": value}, step=step)
        # Each against the next one: the deepest path that the bounds allow, with few checkpoints.
        with mock.patch.object(plan, "wanted_base", lambda place: place + 1):
            store.compact(keep_newest=1)
        depths = {_depth(store, step): step for step in range(_DEEPEST + 1)}
        cases = {"plain": depths[0], "first": depths[1], "deepest": depths[max(depths)]}
        used, took = _in_turns(store.load, cases, rounds)
        decodes, _ = _in_turns(partial(_decode, store), {"first": cases["first"]}, rounds)
    return {
        "depth": max(depths),
        "decode_bytes_s": nbytes / decodes["first"],
        "first_bytes_s": nbytes / used["first"],
        "deepest_bytes_s": nbytes / used["deepest"],
        "first_times_plain": used["first"] / used["plain"],
        "deepest_times_first": used["deepest"] / used["first"],
        "first_times_plain_wall": took["first"] / took["plain"],
        "deepest_times_first_wall": took["deepest"] / took["first"],
        "beyond_bytes": max(_beyond(path, cases["first"], nbytes), _beyond(path, cases["deepest"], nbytes)),
    }


def _values(kind: str, nbytes: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    count = nbytes // 4
    if kind == _KINDS[0]:
        value = torch.randn(count, generator=generator) * 0.02
        for _ in range(_DEEPEST + 1):
            yield value
            value = value + 1e-5 * torch.randn(count, generator=generator)
        return
    narrow = (torch.randn(2 * count, generator=generator) * 0.02).to(torch.bfloat16)
    for _ in range(_DEEPEST + 1):
        yield narrow
        bits = narrow.view(torch.int16).clone()
        moved = torch.rand(2 * count, generator=generator) < _CHANGED
        bits[moved] += 1
        narrow = bits.view(torch.bfloat16)


def _decode(store: Store, step: int) -> None:
    """Decode alone, as a thread of a load does it: the base comes out of the page cache, no digest is compared."""
    out = memoryview(bytearray(TILE_BYTES))
    with store.open_checkpoint(step) as opened:
        directory = opened._directory
        assert not directory.manifest.form.is_plain
        with Decoder(directory) as decoder:
            for blob in directory.manifest.blobs:
                for at in range(0, blob.nbytes, TILE_BYTES):
                    decoder.read(blob.digest, at, out[: blob.nbytes - at], "the bench")


def _depth(store: Store, step: int) -> int:
    with store.open_checkpoint(step) as opened:
        manifest = opened._directory.manifest
        return len(manifest.form.path(manifest.blobs[0].digest)) - 1


def _in_turns(
    work: Callable[[int], object], cases: dict[str, int], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the least processor time and the least time of each case: other processes only ever add to both."""
    used: dict[str, list[float]] = {name: [] for name in cases}
    took: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, step in cases.items():
            begun, begun_s = time.process_time(), time.perf_counter()
            work(step)
            used[name].append(time.process_time() - begun)
            took[name].append(time.perf_counter() - begun_s)
    # Without the first, in which memory and files are met for the first time.
    return {name: min(found[1:]) for name, found in used.items()}, {
        name: min(found[1:]) for name, found in took.items()
    }


_CHILD = """
import sys
from ckstore import Store
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
with Store.open(sys.argv[1], readonly=True) as store:
    store.load(int(sys.argv[2]))  # the libraries are there, and the buffers of threads
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    held = store.load(int(sys.argv[2]))
    print(status("VmHWM") - before)
"""


def _beyond(path: str, step: int, nbytes: int) -> int:
    """Return how much memory a load takes at most beyond its result, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, path, str(step)], capture_output=True, text=True, check=True, timeout=600
    )
    return max(0, int(done.stdout) - nbytes)


def beside(nbytes: int, rounds: int, share: float) -> dict[str, Any]:
    """Return how long saves and training steps take beside a compaction at its share, and without it, in turns."""
    folder = Path(tempfile.mkdtemp(prefix="ckstore-beside-"))
    try:
        with Store.init(folder / "history") as history:
            for step, value in enumerate(_values(_KINDS[0], nbytes)):
                history.save({"w": value}, step=step)
        found: dict[str, dict[str, list[float]]] = {how: {"save": [], "step": []} for how in ("alone", "beside")}
        state = {"w": torch.randn(nbytes // 4)}
        with Store.init(folder / "store") as store:
            for number in range(2 * rounds):
                how = ("alone", "beside")[number % 2]
                child = _compacting(folder, number, share) if how == "beside" else None
                try:
                    _act(store, state, number, found[how])
                    if child is not None and child.poll() is not None:
                        raise RuntimeError("the compaction was over before the saves were: give a larger --size")
                finally:
                    if child is not None:
                        child.kill()
                        child.wait()
        medians = {how: {what: statistics.median(times) for what, times in by.items()} for how, by in found.items()}
        return {
            "share": share,
            "rounds": rounds,
            **{f"{what}_s": medians["alone"][what] for what in ("save", "step")},
            **{f"{what}_times": medians["beside"][what] / medians["alone"][what] for what in ("save", "step")},
            **{
                f"{what}_spread": (max(found["alone"][what]) - min(found["alone"][what])) / medians["alone"][what]
                for what in ("save", "step")
            },
        }
    finally:
        shutil.rmtree(folder)


_COMPACTING = """
import sys
from ckstore import Store
from ckstore.ops.compact.compact import compact
from ckstore.ops.compact.plan import plan
from ckstore.ops.pace import Share
with Store.open(sys.argv[1]) as store:
    made = plan(store._context, (), None, keep_newest=1)
    print("begins", flush=True)
    compact(store._context, made, Share(float(sys.argv[2])))
"""


def _compacting(folder: Path, number: int, share: float) -> subprocess.Popen[str]:
    """Start a compaction of a fresh copy of the history at a share of a processor, below the priority of a training."""
    copy = folder / f"copy-{number}"
    shutil.copytree(folder / "history", copy)
    child = subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-c", _COMPACTING, str(copy), str(share)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def _act(store: Store, state: dict[str, torch.Tensor], number: int, into: dict[str, list[float]]) -> None:
    """Do some steps of a training, and a save."""
    layer, data = torch.nn.Linear(1024, 1024), torch.randn(256, 1024)
    optimizer = torch.optim.AdamW(layer.parameters())
    begun_s = time.perf_counter()
    for _ in range(10):
        layer(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    into["step"].append((time.perf_counter() - begun_s) / 10)
    state["w"] += 1
    begun_s = time.perf_counter()
    store.save(state, step=number)
    into["save"].append(time.perf_counter() - begun_s)
    if number > 1:
        store.delete(number - 2, now=True)


_MARKS = {only: (f"<!--{only}:begin-->", f"<!--{only}:end-->") for only in ("chain", "loads", "beside")}


def write_page(path: Path, only: str, rows: list[dict[str, Any]], command: str) -> None:
    """Write the figures between their markers of a page."""
    lines = [f"`{command}`:"]
    lines += {"loads": _load_lines, "beside": _beside_lines, "chain": _chain_lines}[only](rows)
    page.put(path, *_MARKS[only], "\n".join(lines))


def _load_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "processor time of a load through one link ÷ that of a plain load (goal 3), and of a load through the longest"
        " chain ÷ that through one link (goal 2). The brackets have the links of that chain and the memory beyond the"
        " result"
    )
    yield ""
    for row in rows:
        yield (
            f"- {row['tensor']}: {row['first_times_plain']:.1f} and {row['deepest_times_first']:.1f}"
            f" ({row['depth']} links, {row['beyond_bytes'] / _MIB:.0f} MiB)"
        )


def _chain_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    (row,) = rows
    yield (
        f"a {row['history']}, shrank {row['times']:.1f} times, from {row['plain_bytes'] / _MIB:.1f} MiB to"
        f" {row['encoded_bytes'] / _MIB:.1f} (goal 15). The slowest load of a checkpoint took"
        f" {row['load_times_plain']:.1f} times as long as a plain one."
    )


def _beside_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    (row,) = rows
    yield (
        f"while a compaction used a share of {row['share']} of a core, saves took {row['save_times']:.2f} times as"
        f" long, and training steps {row['step_times']:.2f} times. Without a compaction, the slowest and the fastest"
        f" save differed by {row['save_spread']:.2f} of the median, and the steps by {row['step_spread']:.2f}."
    )
