"""`load_into(since=…)`: the target is as after a whole load, and only what differs was read.

``CKSTORE_CRASH=full`` reads the steps of a LoRA training into a model of 1 GiB, else of 16 MiB;
``-s`` shows the figure.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import BadInput, DamagedBlob, Store
from ckstore.integrations import dcp
from ckstore.ops.read import target_load
from tests.support.damage import MIB, blobs_by_size, flip
from tests.support.examples import examples
from tests.support.requirements import CRASH_FULL

NAMES = ("a", "b", "c")
SIZES = st.sampled_from([0, 3, 1000, MIB // 4, 3 * MIB // 4 + 5])
STATES = st.dictionaries(st.sampled_from(NAMES), st.tuples(SIZES, st.integers(0, 3)), min_size=1)

WIDTH = 2048 if CRASH_FULL else 1024
LAYERS = 64 if CRASH_FULL else 4
"""Of the model with adapters: a layer has WIDTH^2 weights of 4 bytes."""

CHANGES = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3))


def state_of(drawn: dict[str, tuple[int, int]]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, (size, kind) in drawn.items():
        value = torch.arange(size, dtype=torch.float32)
        if kind and size:
            value[(kind * 7919) % size] = -kind
        state[name] = value
    return state


@pytest.mark.property
@settings(max_examples=examples(12))
@given(drawn=STATES, changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_the_target_is_as_after_a_whole_load(drawn: dict[str, tuple[int, int]], changes: list[dict[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "s"), chunk_bytes=MIB)
        store.save(state_of(drawn), 0)
        target = {name: torch.zeros_like(value) for name, value in state_of(drawn).items()}
        report = store.load_into(target, 0)
        for step, change in enumerate(changes, 1):
            drawn = {name: (size, change.get(name, kind)) for name, (size, kind) in drawn.items()}
            store.save(state_of(drawn), step)
            report = store.load_into(target, step, since=report)
            assert report.info.step == step
            assert all(torch.equal(target[name], value) for name, value in state_of(drawn).items())


def model_and_adapters() -> dict[str, Any]:
    return {
        "base": {f"layer{i}": torch.full((MIB,), float(i)) for i in range(4)},
        "lora": {f"layer{i}": torch.zeros(4096) for i in range(4)},
        "step": 0,
    }


@pytest.mark.parametrize("by", ["report", "ref", "info"])
def test_only_what_differs_is_read(by: str, store: Store) -> None:
    state = model_and_adapters()
    store.save(state, 1)
    for tensor in state["lora"].values():
        tensor.add_(1)
    state["step"] = 1
    store.save(state, 2)
    changed_bytes = 4 * 4096 * 4

    target = model_and_adapters()
    first = store.load_into(target, 1)
    assert first.read_bytes == store.info(1).logical_bytes
    kept = target["base"]["layer2"]
    kept[7] = 42.0  # what does not differ is not written either
    since: dict[str, Any] = {"report": first, "ref": 1, "info": first.info}
    report = store.load_into(target, 2, since=since[by])

    assert changed_bytes <= report.read_bytes <= 1.05 * changed_bytes
    assert target["step"] == 1
    assert all(torch.equal(target["lora"][name], value) for name, value in state["lora"].items())
    assert kept[7] == 42.0
    kept[7] = 2.0
    assert all(torch.equal(target["base"][name], value) for name, value in state["base"].items())


class Adapted(torch.nn.Module):
    """A frozen linear layer with an adapter of rank 8 beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down = torch.nn.Linear(WIDTH, 8, bias=False)
        self.up = torch.nn.Linear(8, WIDTH, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(given) + self.up(self.down(given))
        return found


def read_by_this_process() -> int:
    """Return how many bytes this process has got from read calls."""
    return int(Path("/proc/self/io").read_text("ascii").split()[1])


def test_after_steps_of_lora_no_more_is_read_than_the_adapters(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    store = Store.init(tmp_path / "s")
    model = torch.nn.Sequential(*(Adapted() for _ in range(LAYERS)))
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-3)
    target = {"model": torch.nn.Sequential(*(Adapted() for _ in range(LAYERS)))}
    store.save({"model": model}, 0)
    report = store.load_into(target, 0)
    of_disk_bytes = changed_bytes = 0

    for step in (1, 2):
        old = [parameter.detach().clone() for parameter in adapters]
        loss = model(torch.randn(2, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.save({"model": model}, step)
        before = read_by_this_process()
        report = store.load_into(target, step, since=report)
        of_disk_bytes = read_by_this_process() - before
        changed_bytes = sum(new.nbytes for new, was in zip(adapters, old, strict=True) if not torch.equal(new, was))
        assert 0 < report.read_bytes <= 1.05 * changed_bytes

    print(f"of {report.info.logical_bytes} bytes {changed_bytes} changed, and {report.read_bytes} were read,")
    print(f"{report.read_bytes / changed_bytes:.4f} x; {of_disk_bytes / changed_bytes:.4f} x with the manifests")
    assert changed_bytes == sum(parameter.nbytes for parameter in adapters)
    if CRASH_FULL:  # in a small model the manifests weigh more
        assert of_disk_bytes <= 1.05 * changed_bytes
    found = target["model"].state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_a_large_tensor_is_read_by_the_chunks_that_differ(store: Store) -> None:
    weights = np.random.default_rng(1).bytes(8 * MIB)
    state = {"w": np.frombuffer(weights, np.uint8).copy()}
    store.save(state, 1)
    target = {"w": np.zeros(8 * MIB, np.uint8)}
    report = store.load_into(target, 1)
    state["w"][5 * MIB] ^= 1
    store.save(state, 2)
    report = store.load_into(target, 2, since=report)
    assert report.read_bytes == MIB
    assert np.array_equal(target["w"], state["w"])


def test_the_checkpoint_before_may_be_gone(store: Store) -> None:
    store.save({"w": np.zeros(MIB), "v": np.zeros(MIB)}, 1)
    store.save({"w": np.ones(MIB), "v": np.zeros(MIB)}, 2)
    target = {"w": np.ones(MIB), "v": np.ones(MIB)}
    report = store.load_into(target, 1)
    store.delete(1)
    again = store.load_into(target, 2, since=report)
    assert again.read_bytes == 8 * MIB
    assert target["w"].all()
    assert not target["v"].any()


def test_another_selection_or_renaming_is_refused(store: Store) -> None:
    store.save({"w": np.zeros(3), "v": np.zeros(3)}, 1)
    target = {"w": np.ones(3), "v": np.ones(3)}
    report = store.load_into(target, 1, select="w")
    with pytest.raises(BadInput, match="another select or rename"):
        store.load_into(target, 1, since=report)
    assert store.load_into(target, 1, select="w", since=report).read_bytes == 0


def test_tied_tensors_that_part_are_read_whole(store: Store) -> None:
    shared = torch.zeros(1000)
    store.save({"a": shared, "b": shared}, 1)
    store.save({"a": torch.zeros(1000), "b": torch.ones(1000)}, 2)
    target = {"a": torch.ones(1000), "b": torch.ones(1000)}
    report = store.load_into(target, 1)
    store.load_into(target, 2, since=report)
    assert not target["a"].any()
    assert target["b"].all()


def test_memory_that_is_given_now_holds_nothing_of_before(store: Store) -> None:
    model = torch.nn.Linear(100, 100)
    store.save({"model": model}, 1)
    store.save({"model": model}, 2)
    report = store.load_into({"model": torch.nn.Linear(100, 100)}, 1)
    with torch.device("meta"):
        target = torch.nn.Linear(100, 100)
    store.load_into({"model": target}, 2, assign=True, since=report)
    assert torch.equal(target.weight, model.weight)


def test_what_the_load_before_left_alone_is_read(store: Store) -> None:
    state = {"w": torch.ones(1000), "v": torch.ones(1000), "head": torch.ones(10)}
    store.save(state, 1)
    store.save(state, 2)
    target = {"w": torch.zeros(1000), "v": torch.zeros(7)}
    report = store.load_into(target, 1, strict=False)
    assert (set(report.not_loaded), report.unexpected) == ({"v"}, ("head",))
    target |= {"v": torch.zeros(1000), "head": torch.zeros(10)}
    report = store.load_into(target, 2, since=report)
    assert all(value.all() for value in target.values())
    assert report.read_bytes == 4 * 1000 + 4 * 10
    assert store.load_into(target, 1, since=report).read_bytes == 0


@pytest.mark.filterwarnings("ignore:latest-valid is")
def test_after_a_damaged_one_everything_is_read(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "harmed", chunk_bytes=MIB)
    for step in (1, 2, 3):
        store.save({"w": np.full(MIB, step % 2), "v": np.full(MIB // 8, step)}, step)
    target = {"w": np.zeros(MIB, np.int64), "v": np.zeros(MIB // 8, np.int64)}
    report = store.load_into(target, 2)
    for path in blobs_by_size(store, 3):
        if path.name not in {other.name for other in blobs_by_size(store, 1)}:
            flip(path, keep_time=True)
    found = store.load_into(target, "latest-valid", since=report)
    assert found.info.step == 2
    assert (target["w"] == 0).all()
    assert (target["v"] == 2).all()


def test_a_report_counts_only_until_a_load_has_begun_to_change_the_target(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "harmed", chunk_bytes=MIB)
    parts = [torch.full((MIB,), float(step)) for step in range(4)]
    store.save({"a": parts[1], "b": parts[1]}, 1)
    bad = store.save({"a": parts[2], "b": parts[2]}, 2)
    store.save({"a": parts[1], "b": parts[3]}, 3)
    flip(max((store.path / "checkpoints" / "main").glob("2.*/blobs/*")), keep_time=True)
    target = {"a": torch.zeros(MIB), "b": torch.zeros(MIB)}
    report = store.load_into(target, 1)
    target = {name: value.clone() for name, value in target.items()}
    with pytest.raises(DamagedBlob):
        store.load_into(target, bad, since=report)

    again = store.load_into(target, 3, since=report)

    assert again.read_bytes == 8 * MIB
    assert torch.equal(target["a"], parts[1])
    assert torch.equal(target["b"], parts[3])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("by", ["load_into", "load_into part", "dcp"])
def test_a_load_that_was_not_given_a_report_ends_it_as_well(by: str, store: Store) -> None:
    parts = [torch.full((MIB,), float(step)) for step in range(4)]
    store.save({"a": parts[1], "b": parts[1], "n": np.ones(MIB)}, 1)
    store.save({"a": parts[2], "b": parts[2], "n": np.zeros(MIB)}, 2)
    store.save({"a": parts[1], "b": parts[3], "n": np.ones(MIB)}, 3)
    target: dict[str, Any] = {"a": torch.zeros(MIB), "b": torch.zeros(MIB), "n": np.zeros(MIB)}
    report = store.load_into(target, 1)
    if by == "dcp":
        dcp.load(store, {"a": target["a"]}, 2, strict=["a"])
    elif by == "load_into":
        store.load_into(target, 2)
    else:
        store.load_into({"n": target["n"]}, 2, select="n")

    assert store.load_into(target, 3, since=report).read_bytes == 16 * MIB
    assert torch.equal(target["a"], parts[1])
    assert torch.equal(target["b"], parts[3])
    assert target["n"].all()


def test_a_report_of_another_target_stays(store: Store) -> None:
    store.save({"a": torch.ones(MIB)}, 1)
    first, second = ({"a": torch.zeros(MIB)} for _ in range(2))
    report = store.load_into(first, 1)
    store.load_into(second, 1)
    assert store.load_into(first, 1, since=report).read_bytes == 0


def test_bytes_that_were_not_checked_are_read_by_a_load_that_checks(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "harmed", chunk_bytes=MIB)
    frozen = torch.ones(MIB // 4)
    store.save({"frozen": frozen, "w": torch.ones(MIB // 2)}, 1)
    store.save({"frozen": frozen, "w": torch.zeros(MIB // 2)}, 2)
    blob = next(path for path in blobs_by_size(store, 1) if path.name in {one.name for one in blobs_by_size(store, 2)})
    flip(blob, keep_time=True)
    target = {"frozen": torch.zeros(MIB // 4), "w": torch.zeros(MIB // 2)}
    report = store.load_into(target, 1, verify=False)
    assert not torch.equal(target["frozen"], frozen)
    assert store.load_into(target, 2, verify=False, since=report).read_bytes == 2 * MIB
    report = store.load_into(target, 1, verify=False)
    flip(blob, keep_time=True)  # as a repair does

    assert store.load_into(target, 2, since=report).read_bytes == 3 * MIB
    assert torch.equal(target["frozen"], frozen)


def test_progress_of_a_tensor_that_is_read_whole_for_a_part_never_goes_back(store: Store) -> None:
    state = {"w": np.zeros((1024, 1024)), "v": np.zeros(10)}
    store.save(state, 1)
    target = {"w": np.ones((1024, 1024)).T, "v": np.ones(10)}
    report = store.load_into(target, 1)
    state["w"][3, 900] = 5
    store.save(state, 2)
    shown: list[tuple[int, int]] = []
    report = store.load_into(target, 2, since=report, progress=lambda *both: shown.append(both))
    assert np.array_equal(target["w"], state["w"])
    assert shown[-1] == (report.read_bytes, report.read_bytes)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)


def test_progress_ends_with_everything(store: Store) -> None:
    state = {"w": np.zeros(4 * MIB, np.uint8), "small": [np.zeros(5)], "f": torch.zeros(1000)}
    store.save(state, 1)
    shown: list[tuple[int, int]] = []
    target = {"w": np.ones(4 * MIB, np.uint8), "small": [np.ones(5)], "f": torch.ones(1000)}
    report = store.load_into(target, 1, progress=lambda done, everything: shown.append((done, everything)))
    assert shown[-1] == (report.read_bytes, report.read_bytes)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)


def test_a_signal_handler_may_load_from_another_store_at_any_line_of_the_record_of_contents(
    store: Store, tmp_path: Path
) -> None:
    other = Store.init(tmp_path / "other")
    other.save({"w": np.ones(3)}, 1)
    store.save({"w": np.zeros(3)}, 1)
    kept = [store.load_into({"w": np.ones(3)}, 1) for _ in range(2)]
    parts = {target_load.end_contents.__code__, target_load.begin_content.__code__}
    seen, wanted = 0, 1
    loaded: list[Any] = []

    def trace(frame: FrameType | None, event: str, _: object) -> Any:
        nonlocal seen
        if event == "line":
            while frame is not None and frame.f_code not in parts:
                frame = frame.f_back
            seen += frame is not None
            if frame is not None and seen == wanted:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    target = {"w": np.ones(3)}
    before = signal.signal(signal.SIGUSR1, lambda *_: loaded.append(other.load_into({"w": np.zeros(3)}, 1)))
    tracing = sys.gettrace()
    report = store.load_into(target, 1)
    try:
        while seen >= wanted - 1:
            seen = 0
            sys.settrace(trace)
            try:
                report, previous = store.load_into(target, 1, since=report), report
            finally:
                sys.settrace(tracing)
            assert report.read_bytes == 0
            assert store.load_into({"w": np.ones(3)}, 1, since=previous).read_bytes == 24  # it is stale
            wanted += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(loaded) > 2
    assert len(kept) == 2
