"""Weights that are published in another dtype: engines have the bits of ``model.to(dtype)``, after all changes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ckstore import BadInput, CkstoreWarning, Store
from ckstore.provisional import WeightVersion
from tests.support.stores import check_store
from tests.weights.weight_engine import WeightEngine, newest_version

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
WANTED = ["bfloat16", "float16", "float32"]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """The state dict of a model as a trainer has it, with values that are no floating-point numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(90, 70, generator=generator),
        "layer.weight": torch.randn(90, 70, generator=generator),
        "norm.weight": torch.ones(70),
        "half.weight": torch.randn(30, generator=generator).bfloat16(),
        "scale": torch.tensor(0.1, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "steps": torch.arange(50),
        "mask": torch.tensor([True, False, True]),
    }


def train(weights: dict[str, torch.Tensor], seed: int, size: float = 0.5) -> None:
    """Change some values in place."""
    generator = torch.Generator().manual_seed(seed)
    for name in ("embed.weight", "layer.weight")[seed % 2 :]:
        flat = weights[name].view(-1)
        flat[torch.randperm(len(flat), generator=generator)[:60]] += size
    weights["steps"] += 1


def as_published(weights: dict[str, torch.Tensor], dtype: str | None) -> dict[str, torch.Tensor]:
    """Return the weights as torch's modules convert them, which leaves integers alone."""
    wanted = None if dtype is None else getattr(torch, dtype)
    return {
        name: value.clone().to(wanted) if value.is_floating_point() else value.clone()
        for name, value in weights.items()
    }


def check_equal(engine: WeightEngine, weights: dict[str, torch.Tensor]) -> None:
    """The engine would serve exactly these bits."""
    served = engine.weights()
    assert served.keys() == weights.keys()
    for name, value in weights.items():
        assert (served[name].dtype, served[name].shape) == (value.dtype, value.shape), name
        assert torch.equal(bits(served[name]), bits(value)), name


def bits(value: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor."""
    return value.contiguous().view(BITS[value.element_size()])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The directory of the model that engines start with."""
    path = tmp_path / "base"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt2", "dtype": "bfloat16"}\n')
    save_file(as_published(model(), "bfloat16"), path / "model.safetensors")
    return path


@pytest.fixture
def engine(tmp_path: Path, base: Path) -> WeightEngine:
    """An engine that pulls."""
    return WeightEngine(tmp_path / "local", base)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store with small chunks."""
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as store:
        yield store


def publish(store: Store, out: Path, base: Path, **options: Any) -> list[WeightVersion]:
    """Publish the newest checkpoint."""
    chosen: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 0, "dtype": "bfloat16", **options}
    with store.publish("policy", out, **chosen) as publisher:
        return [*publisher]


@pytest.mark.parametrize("form", ["overwrite", "xor"])
@pytest.mark.parametrize("dtype", WANTED)
def test_an_engine_gets_the_bits_of_a_converted_model(  # noqa: PLR0917
    dtype: str, form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    late = WeightEngine(tmp_path / "late", base)
    for step in range(1, 5):
        train(weights, step)
        store.save({"model": weights, "step": step}, step, "policy")
        (version,) = publish(store, out, base, dtype=dtype, difference=form)
        assert (version.step, version.is_full, version.dtype, version.out_of_range) == (step, step == 1, dtype, 0)
        assert step == 1 or version.nbytes < 6_000
        engine.pull(out, step)
        check_equal(engine, as_published(weights, dtype))
    late.pull(out, 4)
    check_equal(late, as_published(weights, dtype))
    assert publish(store, out, base, dtype=dtype) == []
    check_store(store.path)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("found", FLOATS, ids=str)
def test_every_dtype_and_layout_is_converted(  # noqa: PLR0917
    found: torch.dtype, wanted: str, store: Store, tmp_path: Path, engine: WeightEngine, base: Path
) -> None:
    out = tmp_path / "out"
    whole = torch.randn(300, 1000, dtype=torch.float64).to(found)
    state: dict[str, Any] = {
        "turned": whole.T,
        "rows": whole[3:9],
        "gaps": torch.randn(40, 60, dtype=torch.float64).to(found)[:, ::3],
        "one": torch.tensor(1.2345, dtype=found),
        "none": torch.zeros(0, 3, dtype=found),
        "small": torch.tensor([1e-40, -1e-40, 6e-8, 3e-8, 60000.0, 0.0, -0.0, 1 / 3], dtype=torch.float64).to(found),
        "infinite": torch.tensor([float("inf"), float("-inf")], dtype=found),
    }
    for step in (1, 2):
        state["turned"][step, step * 2] += 1
        state["small"][7] += step
        store.save(state, step, "policy")
        (version,) = publish(store, out, base, select=None, dtype=wanted)
        assert version.is_full is (step == 1)
        engine.pull(out, step)
        check_equal(engine, as_published(state, wanted))
    check_store(store.path)


def test_arrays_of_numpy_are_converted(store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    out = tmp_path / "out"
    state = {"w": np.linspace(-3, 3, 1001, dtype=np.float32), "n": np.arange(4)}
    store.save(state, 1, "policy")
    publish(store, out, base, select=None)
    engine.pull(out, 1)
    check_equal(engine, {"w": torch.from_numpy(state["w"]).bfloat16(), "n": torch.arange(4)})


@pytest.mark.parametrize("form", ["overwrite", "xor"])
def test_a_change_below_the_precision_is_not_sent(
    form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    for name in ("embed.weight", "layer.weight"):  # values in the middle of those that are rounded to them
        weights[name] = weights[name].bfloat16().float()
    store.save({"model": weights}, 1, "policy")
    publish(store, out, base, difference=form)
    engine.pull(out, 1)
    before = as_published(weights, "bfloat16")
    for name in ("embed.weight", "norm.weight"):
        weights[name] *= 1 + 1e-7
    weights["layer.weight"][5, 5] += 1
    store.save({"model": weights}, 2, "policy")
    (version,) = publish(store, out, base, difference=form)
    after = as_published(weights, "bfloat16")
    changed = {name for name in after if not torch.equal(bits(after[name]), bits(before[name]))}
    names = {name for path in version.path.glob("*.safetensors") for name in load_file(path)}
    engine.pull(out, 2)

    assert changed == names == {"layer.weight"}
    check_equal(engine, after)
    # A step that changes nothing at this precision is a version without tensors.
    weights["embed.weight"] *= 1 + 1e-7
    store.save({"model": weights}, 3, "policy")
    (version,) = publish(store, out, base, difference=form)
    assert [*version.path.glob("*.safetensors")] == []
    engine.pull(out, 3)
    check_equal(engine, after)


def test_a_step_at_a_small_learning_rate_costs_less_in_bfloat16(store: Store, tmp_path: Path, base: Path) -> None:
    """Print the bytes of one step in both dtypes: ``pytest -s -k learning_rate``."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6)
    sizes: dict[str | None, list[int]] = {"bfloat16": [], None: []}
    for step in range(1, 5):
        network(torch.randn(16, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        store.save({"model": network}, step, "policy")
        for dtype, found in sizes.items():
            (version,) = publish(store, tmp_path / str(dtype), base, dtype=dtype, full_above=1.0)
            found.append(version.nbytes)
    print(f"bytes of each step: {sizes['bfloat16']} in bfloat16, {sizes[None]} in float32")

    assert all(20 * small < large for small, large in zip(sizes["bfloat16"][1:], sizes[None][1:], strict=True))


@pytest.mark.parametrize("form", ["overwrite", "xor"])
def test_a_value_that_is_not_a_number_has_the_same_bits_in_each_version(
    form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """The bits that torch gives it depend on its place in memory, and a difference is to the bytes of an engine."""
    out = tmp_path / "out"
    for source, wanted in ((torch.float64, "bfloat16"), (torch.bfloat16, "float16"), (torch.bfloat16, "float32")):
        weights = {"w": torch.full((1201, 1001), torch.nan, dtype=source).T}
        weights["w"][::3] = 0.5
        for step in (1, 2, 3):
            weights["w"][step * 300, 7:10] = step
            store.save({"model": weights}, step, "policy", if_exists="replace")
            (version,) = publish(store, out, base, dtype=wanted, difference=form)
            engine.pull(out, version.version)
            served = engine.weights()["w"]
            assert torch.equal(served.isnan(), weights["w"].isnan())
            assert len({*bits(served)[served.isnan()].tolist()}) == 1
            assert torch.equal(served.nan_to_num(), weights["w"].to(served.dtype).nan_to_num())
            assert version.is_full is (step == 1)


def test_values_that_become_infinite_are_counted_and_named_once_in_each_version(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = {"a": torch.ones(50), "b": torch.ones(50), "c": torch.tensor([float("inf")])}, tmp_path / "out"
    weights["a"][3], weights["a"][4], weights["b"][9] = 1e6, -1e6, 70_000.0
    store.save({"model": weights}, 1, "policy")
    beyond = "outside the range of the new dtype"
    said = f"version 1 .*: a: float32 to float16, 2 values {beyond}; b: .*, 1 value {beyond}$"
    with pytest.warns(CkstoreWarning, match=said) as caught:
        (version,) = publish(store, out, base, dtype="float16")
    assert len(caught) == 1
    assert version.out_of_range == 3
    assert "3 values outside the range of the new dtype" in str(version)
    engine.pull(out, 1)
    check_equal(engine, as_published(weights, "float16"))

    # A version without these weights does not repeat it, and one that has them does.
    weights["c"][0] = 1
    store.save({"model": weights}, 2, "policy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (version,) = publish(store, out, base, dtype="float16")
    assert (version.is_full, version.out_of_range) == (False, 0)
    weights["b"][0] = 2
    store.save({"model": weights}, 3, "policy")
    with pytest.warns(
        CkstoreWarning, match="version 3 .*: b: float32 to float16, 1 value outside the range of the new dtype$"
    ):
        (version,) = publish(store, out, base, dtype="float16")
    assert (version.is_full, version.out_of_range) == (False, 1)
    with store.publish("policy", out, select="model", add=[base], dtype="float16", timeout_s=0) as publisher:
        assert publisher.newest is not None
        assert publisher.newest.out_of_range == 1
    engine.pull(out, 3)
    check_equal(engine, as_published(weights, "float16"))


def test_another_dtype_is_published_with_all_weights(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """Also of the same checkpoint: engines have the weights in the dtype of before."""
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    order: list[str | None] = [None, "bfloat16", "bfloat16", "float16", None]
    for number, dtype in enumerate(order, 1):
        if number == 3:  # the same dtype: a difference
            train(weights, 1)
            store.save({"model": weights}, 2, "policy")
        (version,) = publish(store, out, base, dtype=dtype)
        assert (version.version, version.dtype, version.is_full) == (number, dtype, number != 3)
        engine.pull(out, number)
        check_equal(engine, as_published(weights, dtype) if dtype else weights)
        assert publish(store, out, base, dtype=dtype) == []
        own = "that of the checkpoint"
        changes = {2: f"{own} to bfloat16", 4: "bfloat16 to float16", 5: f"float16 to {own}"}
        assert number not in changes or version.reason == f"the dtype changed from {changes[number]}"
    about = [json.loads(path.read_text())["dtype"] for path in sorted(out.glob("*/ckstore-version.json"))]
    assert about[-2:] == ["float16", ""]
    check_store(store.path)


def test_a_trainer_that_changes_its_dtype_keeps_the_chain(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """What engines have does not depend on the dtype of the checkpoint, and equal bytes can be other values."""
    out, halves = tmp_path / "out", torch.randn(2**19 + 5).half()
    other = halves.clone()
    other[0] = 7  # the chunks after the first one have the same bytes
    states = [halves, halves.view(torch.bfloat16), other, halves.double(), halves.float()]
    for step, value in enumerate(states, 1):
        store.save({"model": {"w": value}}, step, "policy")
        (version,) = publish(store, out, base, dtype="float32", difference="xor", full_above=1.0)
        assert version.is_full is (step == 1), version.reason
        engine.pull(out, step)
        check_equal(engine, {"w": value.float()})


def test_a_part_of_a_buffer_is_compared_by_its_chunks(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    out = tmp_path / "out"
    buffer = torch.zeros(4 * 700_000 + 8, dtype=torch.uint8)
    values = buffer[4:-4].view(torch.float32)
    values.copy_(torch.randn(700_000))
    state = {"model": {"bytes": buffer[1:], "w": values}}
    for step in (1, 2, 3):
        # The last element of a chunk, or the first one of the next chunk.
        values[2**18 - 3 + step] *= 2
        store.save(state, step, "policy")
        (version,) = publish(store, out, base)
        assert version.is_full is (step == 1)
        engine.pull(out, step)
        check_equal(engine, {"bytes": buffer[1:], "w": values.bfloat16()})


def test_tied_tensors_are_converted_once(store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    weights, out = torch.randn(60, 50), tmp_path / "out"
    for step in (1, 2):
        weights[step, 7] += 1
        store.save({"model": {"embed": weights, "head": weights, "part": weights[10:]}}, step, "policy")
        (version,) = publish(store, out, base)
        assert version.is_full is (step == 1)
        engine.pull(out, step)
        served = engine.weights()
        assert served.keys() == {"embed", "part"}  # from_pretrained ties the other one
        check_equal(engine, {"embed": weights.bfloat16(), "part": weights[10:].bfloat16()})


@pytest.mark.parametrize("files", ["one", "several", "pickle"])
def test_committed_files_are_converted(
    files: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out, folder = model(), tmp_path / "out", tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}\n')
    for step in range(1, 4):
        train(weights, step)
        _write_files(files, weights, folder)
        store.commit(folder, step=step, run="policy")
        (version,) = publish(store, out, base, select=None, add=[])
        assert version.is_full is (step == 1)
        engine.pull(out, step)
        check_equal(engine, as_published(weights, "bfloat16"))
        assert (engine.local / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    shards = sorted(path.name for path in (out / "weight_v000001").glob("*"))
    if files == "several":
        index = json.loads((out / "weight_v000001" / "model.safetensors.index.json").read_text())
        assert {*index["weight_map"]} == {*weights}
        assert {*index["weight_map"].values()} == {name for name in shards if name.endswith(".safetensors")}
        converted = as_published(weights, "bfloat16").values()
        assert index["metadata"]["total_size"] == sum(value.nbytes for value in converted)
    else:
        assert shards == ["ckstore-version.json", "config.json", "model.safetensors"]
    check_store(store.path)


def _write_files(files: str, weights: dict[str, torch.Tensor], folder: Path) -> None:
    if files == "pickle":
        torch.save(weights, folder / "pytorch_model.bin")
    elif files == "one":
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        names = [*weights]
        parts = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
        for file, part in parts.items():
            save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
        index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_compacted_and_evicted_checkpoints_are_converted(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = {"w": torch.randn(1200, 700), "v": torch.randn(40)}, tmp_path / "out"
    store.remotes.add("nas", str(tmp_path / "nas"))
    kept = {}
    for step in range(1, 5):
        weights["w"][step * 50] += 1e-3
        kept[step] = {name: value.bfloat16() for name, value in weights.items()}
        store.save({"model": weights}, step, "policy")
    store.push(["policy@1", "policy@2", "policy@3", "policy@4"], "nas")
    assert store.compact(run="policy", keep_newest=1).compacted
    for number, step in enumerate((2, 3, 1), 1):
        if step == 3:
            store.evict(["policy@2", "policy@3"])
        (version,) = publish(store, out, base, ref=f"policy@{step}", full_above=1.0)
        engine.pull(out, number)
        check_equal(engine, kept[step])
        assert version.is_full is (step != 3), version.reason
    store.gc(now=True)
    check_store(store.path)


def test_added_files_and_a_rollback_start_with_all_weights_in_the_dtype(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out, kept = model(), tmp_path / "out", {}
    for step in (1, 2, 3):
        train(weights, step)
        kept[step] = as_published(weights, "bfloat16")
        store.save({"model": weights}, step, "policy")
        publish(store, out, base)
    store.delete("policy@3")
    (version,) = publish(store, out, base)
    assert (version.step, version.is_full, version.dtype) == (2, True, "bfloat16")
    engine.pull(out, 4)
    check_equal(engine, kept[2])
    (base / "tokenizer.json").write_text("{}")
    (version,) = publish(store, out, base)
    assert version.reason == "the files to add changed"
    engine.pull(out, 5)
    check_equal(engine, kept[2])
    assert (engine.local / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "float64", "bf16", torch.bfloat16, 16, ""])
def test_other_dtypes_are_refused(dtype: Any, store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="dtype must be float16, bfloat16 or float32, or None"):
        store.publish("policy", tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("found", [torch.float8_e4m3fn, torch.complex64, torch.float8_e5m2])
def test_weights_that_a_conversion_would_not_keep_are_refused(
    found: torch.dtype, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """Narrow weights need their scales, and complex ones would lose a part."""
    weights, out = {"v": torch.ones(3), "w": torch.ones(3).to(found)}, tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    name = str(found).removeprefix("torch.")
    with pytest.raises(BadInput, match=rf"w has dtype {name}, which cannot be published as bfloat16"):
        publish(store, out, base)
    assert newest_version(out) == 0
    publish(store, out, base, dtype=None)
    engine.pull(out, 1)
    check_equal(engine, weights)


def test_a_killed_publisher_continues_in_its_dtype(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    words = ["publish", "policy", str(out), "--store", str(store.path), "--select", "model", "--add", str(base)]
    words += ["--poll", "0.01", "--dtype", "bfloat16"]
    for step in (1, 2):
        with subprocess.Popen([sys.executable, "-m", "ckstore_cli", *words], stdout=subprocess.PIPE, text=True) as one:
            assert one.stdout is not None
            if step == 2:
                until_s = time.monotonic() + 60
                while time.monotonic() < until_s and not _is_open(one.pid, store.path):
                    time.sleep(0.01)
                train(weights, 1)
                store.save({"model": weights}, 2, "policy")
            line = one.stdout.readline()
            one.kill()
        form = r"all weights in bfloat16 \(the first version\)" if step == 1 else "differences in bfloat16"
        assert re.search(rf"version {step}: policy@{step} \w+, {form}, ", line), line
    engine.pull(out, 2)
    check_equal(engine, as_published(weights, "bfloat16"))
    check_store(store.path)


def _is_open(pid: int, path: Path) -> bool:
    """Whether the process has a checkpoint of the store open."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(fd.readlink())
        except FileNotFoundError:
            continue
    return any(one.is_relative_to(path / "checkpoints" / "policy") for one in found)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.sampled_from(["train", "tiny", "back", "delete", "gc", "pull", "dense", "full", *WANTED, "unchanged"]),
        min_size=2,
        max_size=12,
    )
)
def test_law_engines_have_the_newest_checkpoint_in_the_dtype_of_the_newest_version(
    acts: list[str], tmp_path_factory: pytest.TempPathFactory, base: Path
) -> None:
    folder = tmp_path_factory.mktemp("law")
    store, out = Store.init(folder / "store"), folder / "out"
    engines = [WeightEngine(folder / f"engine{i}", base) for i in range(2)]
    saved: dict[str, dict[str, torch.Tensor]] = {}
    weights, step, dtype = model(), 0, "bfloat16"
    for i, act in enumerate(acts):
        if act in ("train", "dense", "tiny"):
            step += 1
            if act == "dense":
                weights["embed.weight"] += 0.1
            train(weights, i, 1e-7 if act == "tiny" else 0.5)
            info = store.save({"model": weights}, step, "policy", if_exists="replace")
            saved[info.id] = {name: value.clone() for name, value in weights.items()}
        elif act == "back" and step > 1:
            step -= 2
        elif act == "delete" and (latest := store.latest("policy")) is not None:
            store.delete(latest)
        elif act == "gc":
            store.gc(now=True)
        elif act in (*WANTED, "unchanged"):
            dtype = act
        wanted = None if dtype == "unchanged" else dtype
        publish(store, out, base, full_every=2 if act == "full" else 50, keep_full=1, dtype=wanted)
        newest = store.latest("policy")
        if newest is not None:
            for engine in engines[: 1 if act != "pull" else 2]:
                engine.pull(out, newest_version(out))
                check_equal(engine, as_published(saved[newest.id], wanted) if wanted else saved[newest.id])
    check_store(store.path)
