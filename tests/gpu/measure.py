"""``python -m tests.gpu.measure CASE FOLDER``: measure one thing on the GPU, and print it as a line of JSON.

Without a GPU each case runs in its CPU form, with less: it shows that the case works, and its seconds mean nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ckstore import CheckpointInfo, Store
from ckstore.tensors.device import fingerprint, streams
from ckstore.tensors.state_capture import capture
from tests.bench import states
from tests.bench.case import sync_file
from tests.bench.results import machine, versions
from tests.bench.states import Sizes, State
from tests.bench.usage import make_warm
from tests.gpu.cores import by_threads
from tests.gpu.parts import LOAD, SAVE, SAVE_ASYNC, timed
from tests.gpu.streams import StandIn

Figures = dict[str, Any]
_ON_GPU = torch.cuda.is_available()
_DEVICE = "cuda" if _ON_GPU else "cpu"
_PLACE = torch.device(_DEVICE)
_STATE_BYTES = 2**30 if _ON_GPU else 8 * 2**20
_ROUNDS = 5 if _ON_GPU else 1
_TIMEOUT_S = 60.0
_CORES_S = 40.0
"""Less than `run._CASE_S` by what the imports and the act in hand take."""


def about(_: Path) -> Figures:
    """Say what this machine is."""
    found: Figures = {"machine": machine(), "versions": versions(), "cuda": torch.version.cuda, "card": None}
    if _ON_GPU:
        card = torch.cuda.get_device_properties(0)
        found["card"] = {"name": card.name, "memory_bytes": card.total_memory, "count": torch.cuda.device_count()}
    return found


def copies(_: Path) -> Figures:
    """Copy the bytes of the state between the device and memory, pageable and pinned: the baseline of all else."""
    far = torch.ones(_STATE_BYTES, dtype=torch.uint8, device=_DEVICE)
    found: Figures = {"bytes": far.nbytes}
    for kind in ("pageable", "pinned") if _ON_GPU else ("pageable",):
        near = torch.ones(_STATE_BYTES, dtype=torch.uint8, pin_memory=kind == "pinned")
        found[f"from_device_{kind}_s"] = seconds(partial(near.copy_, far))
        found[f"to_device_{kind}_s"] = seconds(partial(far.copy_, near))
    return found


def fingerprints(_: Path) -> Figures:
    """Take the fingerprints of the state on the device, by each way, beside a look at torch's counters of versions."""
    state = made()
    sources: Any = capture(state).sources
    began_s = time.perf_counter()
    kernel, why_not = fingerprint.compiled(timeout_s=40.0) if _ON_GPU else (None, "no CUDA device")
    found: Figures = {"bytes": nbytes(state), "compile_s": time.perf_counter() - began_s, "why_no_kernel": why_not}
    if kernel is not None:
        found["kernel_s"] = seconds(lambda: fingerprint.of_storages(sources))
    regions = [part for source in sources for _, part in source.flat_parts(0, source.nbytes)]
    found["torch_s"] = seconds(lambda: fingerprint.by_torch(regions))
    found["versions_s"] = seconds(lambda: [tensor._version for tensor in state.values()])
    found["capture_s"] = seconds(lambda: capture(state))
    return found


def save(folder: Path) -> Figures:
    """Save the state durably, all of it new each time, beside torch.save with an fsync."""
    state = made()
    found: Figures = {"bytes": nbytes(state)}
    with Store.init(folder / "store") as store:
        steps = count()
        found["ckstore_s"] = seconds(lambda: store.save(state, step=next(steps)), before=lambda: change(state))
        with timed(SAVE) as parts:
            change(state)
            info = store.save(state, step=next(steps))
        found["parts_s"] = {**parts, **seconds_of(info)}
        found["ckstore_unchanged_s"] = seconds(lambda: store.save(state, step=next(steps)))
        with timed(SAVE) as parts:
            info = store.save(state, step=next(steps))
        found["parts_unchanged_s"] = {**parts, **seconds_of(info)}
        found["kept_bytes"] = info.counters.kept_bytes if info.counters else None
        found["ckstore_one_changed_s"] = seconds(
            lambda: store.save(state, step=next(steps)), before=lambda: change_one(state)
        )
        found["same"] = same(store.load(), state)

    def peer() -> None:
        torch.save(state, folder / "peer.pt")
        sync_file(folder / "peer.pt")

    found["torch_save_s"] = seconds(peer, before=lambda: change(state))
    return found


def stall(folder: Path) -> Figures:
    """Save in the background: how long the call holds the training up, and until the checkpoint is durable."""
    return stalls(folder, _STATE_BYTES, _ROUNDS)


def stall_large(folder: Path) -> Figures:
    """The same of a state three times as large, in as many tensors: what is done for each of them weighs less."""
    return stalls(folder, 3 * _STATE_BYTES, min(_ROUNDS, 2), prewarm=True)


def stalls(folder: Path, state_bytes: int, rounds: int, *, prewarm: bool = False) -> Figures:
    """Measure calls of `save_async`: the first, later ones, those of an unchanged state, and those behind an event."""
    state = made(state_bytes)
    found: Figures = {"bytes": nbytes(state)}
    durable: list[float] = []
    steps = count()

    def call(**options: Any) -> float:
        wait()
        begun_s = time.perf_counter()
        pending = store.save_async(state, step=next(steps), **options)
        called_s = time.perf_counter() - begun_s
        change(state)  # at once: behind an event the copies still go on
        pending.result(_TIMEOUT_S)
        durable.append(time.perf_counter() - begun_s)
        return called_s

    def unchanged_call() -> float:
        wait()
        begun_s = time.perf_counter()
        pending = store.save_async(state, step=next(steps))
        called_s = time.perf_counter() - begun_s
        found["kept_bytes"] = getattr(pending.result(_TIMEOUT_S).counters, "kept_bytes", None)
        return called_s

    near = torch.empty(0)
    if _ON_GPU:
        far = torch.ones(found["bytes"], dtype=torch.uint8, device=_DEVICE)
        near = torch.empty(found["bytes"], dtype=torch.uint8, pin_memory=True)
        found["pinned_copy_s"] = seconds(lambda: near.copy_(far))
        del far, near
    with Store.init(folder / "store") as store:
        if prewarm:
            begun_s = time.perf_counter()
            store.background.prewarm(state)
            found["prewarm_s"] = time.perf_counter() - begun_s
        with timed(SAVE_ASYNC) as parts:
            # It starts a process and makes the shared memory that the others use again.
            found["prewarmed_call_s" if prewarm else "first_call_s"] = call()
        found["parts_first_s"] = dict(parts)
        if _ON_GPU:  # the thread that compiles would else be at work beside the first of what follows
            fingerprint.compiled(timeout_s=40.0)
        found["call_s"] = statistics.median(call() for _ in range(rounds))
        with timed(SAVE_ASYNC) as parts:
            found["timed_call_s"] = call()
        found["parts_s"] = dict(parts)
        found["durable_s"] = statistics.median(durable[1:])
        if _ON_GPU:
            found["after_call_s"] = statistics.median(call(after=event()) for _ in range(rounds // 2 or 1))
        kept = {name: tensor.clone().cpu() for name, tensor in state.items()}
        options = {"after": event()} if _ON_GPU else {}
        call(**options)
        found["same"] = same(store.load(), kept)
        unchanged_call()
        found["unchanged_call_s"] = statistics.median(unchanged_call() for _ in range(rounds))
        with timed(SAVE_ASYNC) as parts:
            unchanged_call()
        found["parts_unchanged_s"] = dict(parts)
        found["same"] = found["same"] and same(store.load(), state)
    return found


def load(folder: Path) -> Figures:
    """Load the state to the device from the page cache, beside torch.load and safetensors."""
    state = made()
    torch.save(state, folder / "peer.pt")
    save_file(state, folder / "peer.safetensors")
    with Store.init(folder / "store") as store:
        store.save(state, step=1)
        make_warm(folder)
        target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        found: Figures = {
            "bytes": nbytes(state),
            "ckstore_s": seconds(lambda: store.load(1, device=_PLACE)),
            "ckstore_unverified_s": seconds(lambda: store.load(1, device=_DEVICE, verify=False)),
            "ckstore_in_place_s": seconds(lambda: store.load_into(target, 1)),
            "torch_load_s": seconds(lambda: torch.load(folder / "peer.pt", map_location=_DEVICE, weights_only=True)),
            "safetensors_s": seconds(lambda: load_file(folder / "peer.safetensors", device=_DEVICE)),
        }
        with timed(LOAD) as parts:
            found["timed_load_s"] = seconds(lambda: store.load(1, device=_PLACE))
        found["parts_sum_s"] = dict(parts)  # of all rounds
        found["rounds"] = _ROUNDS + 1
        for threads in (2, 4, 8, 16) if _ON_GPU else (2,):
            store.config.threads = threads
            found[f"ckstore_{threads}_threads_s"] = seconds(lambda: store.load(1, device=_PLACE))
        found["same"] = same(store.load(1, device=_PLACE), state) and same(target, state)
    return found


def crossed(folder: Path) -> Figures:
    """Count the bytes that saves and loads copy between the device and memory, as the profiler of CUDA sees them."""
    state = made()
    found: Figures = {"bytes": nbytes(state)}
    if not _ON_GPU:
        return found | {"not_counted": "no CUDA device"}
    with Store.init(folder / "store") as store:
        acts: dict[str, Callable[[], object]] = {
            "first_save": lambda: store.save(state, step=1),
            "unchanged_save": lambda: store.save(state, step=2),
            "first_async_save": lambda: store.save_async(state, step=3).result(_TIMEOUT_S),
            "unchanged_async_save": lambda: store.save_async(state, step=4).result(_TIMEOUT_S),
            "load": lambda: store.load(1, device=_PLACE),
        }
        for name, act in acts.items():
            found[name] = copied_bytes(act, folder / "trace.json")
    return found


def copied_bytes(act: Callable[[], object], trace: Path) -> dict[str, int]:
    """Return the bytes that `act` copied, by kind of copy (``DtoH``, ``HtoD``)."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        act()
        wait()
    profile.export_chrome_trace(str(trace))
    return copies_in(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])


def copies_in(events: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Add up the bytes of the copies between device and memory in a trace of the profiler."""
    sums = {"DtoH": 0, "HtoD": 0}
    for event in events:
        for kind in sums:
            if event.get("cat") == "gpu_memcpy" and kind in event["name"]:
                sums[kind] += int(event["args"]["bytes"])
    return sums


def cores(folder: Path) -> Figures:
    """Save and load a state of the processor's memory by the number of threads, for at most a minute."""
    return by_threads(folder, 2 * _STATE_BYTES, _CORES_S)


def event() -> torch.cuda.Event:
    """Return an event behind what the current stream was given."""
    recorded = torch.cuda.Event()  # type: ignore[no-untyped-call]
    recorded.record()
    return recorded


def seconds_of(info: CheckpointInfo) -> dict[str, float]:
    """Return what the store counted of a save."""
    return {} if info.counters is None else {name: v for name, v in asdict(info.counters).items() if name[-2:] == "_s"}


def made(state_bytes: int = _STATE_BYTES) -> State:
    """Return the state on the device."""
    state = states.make("llm", Sizes(state_bytes))
    return {name: tensor.to(_DEVICE) for name, tensor in state.items()}


def change(state: State) -> None:
    """Change every element, so that no blob of an earlier save is found again."""
    for tensor in state.values():
        tensor.view(-1).view(torch.uint8).add_(1)


def change_one(state: State) -> None:
    """Change one element."""
    next(iter(state.values())).view(-1).view(torch.uint8)[:1].add_(1)


def same(found: State, wanted: State) -> bool:
    """Whether two states have the same bits, wherever they are."""
    return states.same({name: tensor.cpu() for name, tensor in found.items()}, {n: t.cpu() for n, t in wanted.items()})


def nbytes(state: State) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())


def wait() -> None:
    """Wait until the device has done everything."""
    if _ON_GPU:
        torch.cuda.synchronize()


def seconds(act: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Return the median seconds of an act; a first one, which imports and allocates, does not count."""
    found = []
    for _ in range(_ROUNDS + 1):
        before()
        wait()
        begun_s = time.perf_counter()
        result = act()
        wait()
        found.append(time.perf_counter() - begun_s)
        del result
    return statistics.median(found[1:])


CASES = {case.__name__: case for case in (about, copies, stall, fingerprints, load, save, crossed, stall_large, cores)}
"""In the order of their weight: where time runs out, the last are missing."""


def main(name: str, parent: Path) -> None:
    """Run one case in a directory of its own."""
    torch.set_num_threads(1)
    if not _ON_GPU and name != cores.__name__:
        # So that these forms go the ways that a GPU goes; that one has its state in the processor's memory anywhere.
        streams.system = StandIn()
    with tempfile.TemporaryDirectory(prefix="ckstore-gpu-", dir=parent) as folder:
        print(json.dumps(CASES[name](Path(folder))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
