"""Published weights: engines that pull a version have exactly the weights of its checkpoint, whatever happens between.

The engine is a stand-in, written from the description of the layout.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ckstore import BadInput, CkstoreError, CkstoreWarning, DamagedBlob, InUse, NoSuchRef, RetentionPolicy, Store
from ckstore.fs import files, new_tree
from ckstore.fs.buffers import aligned_buffer
from ckstore.ops.read import regions
from ckstore.ops.read.formats.export_pretrained import export_pretrained
from ckstore.provisional import WeightVersion
from ckstore.weights import publisher as publisher_module
from tests.support.stores import check_store
from tests.weights.weight_engine import WeightEngine, WrongWeights, newest_version

NAMES = ("embed.weight", "layers.0.weight", "layers.1.weight", "norm.weight")


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """The state dict of a model."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(90, 70, generator=generator).bfloat16() for name in NAMES[:3]} | {
        NAMES[3]: torch.ones(70)
    }


def train(weights: dict[str, torch.Tensor], seed: int, share: float = 0.01) -> None:
    """Change some values of some tensors in place."""
    generator = torch.Generator().manual_seed(seed)
    for name in NAMES[seed % 2 :: 2]:
        flat = weights[name].view(-1)
        where = torch.randperm(len(flat), generator=generator)[: max(1, int(share * len(flat)))]
        flat[where] += 0.5


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The directory of the model that engines start with."""
    path = tmp_path / "base"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt2"}\n')
    save_file(model(), path / "model.safetensors")
    return path


@pytest.fixture
def engine(tmp_path: Path, base: Path) -> WeightEngine:
    """An engine that pulls."""
    return WeightEngine(tmp_path / "local", base)


def publish(store: Store, out: Path, base: Path, **options: Any) -> list[WeightVersion]:
    """Publish what there is."""
    chosen: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 0, **options}
    with store.publish("policy", out, **chosen) as publisher:
        return [*publisher]


def wait_until_open(store: Store, ref: str) -> None:
    """Wait until a process has a checkpoint open."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        try:
            store.delete(ref, dry_run=True)
        except InUse:
            return
        time.sleep(0.01)
    pytest.fail(f"{ref} is not open")


def check_equal(engine: WeightEngine, weights: dict[str, torch.Tensor]) -> None:
    """The engine would serve exactly these weights."""
    served = engine.weights()
    assert served.keys() == weights.keys()
    assert all(served[name].dtype == weights[name].dtype for name in weights)
    assert all(torch.equal(served[name], weights[name]) for name in weights)


@pytest.mark.parametrize("form", ["overwrite", "xor"])
def test_an_engine_gets_each_step(form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    weights, out = model(), tmp_path / "out"
    late = WeightEngine(tmp_path / "late", base)
    for step in range(1, 5):
        train(weights, step)
        store.save({"model": weights, "step": step}, step, "policy")
        (version,) = publish(store, out, base, difference=form)
        assert version.nbytes < (60_000 if step == 1 else 5_000)
        assert (version.version, version.step, version.is_full) == (step, step, step == 1)
        engine.pull(out, step)
        check_equal(engine, weights)
        assert (engine.local / "config.json").read_bytes() == (base / "config.json").read_bytes()
    late.pull(out, 4)  # an engine that starts late copies version 1 and applies the others
    check_equal(late, weights)
    assert publish(store, out, base) == []
    check_store(store.path)


def test_the_newest_version_is_the_newest_checkpoint_after_a_rollback(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    out, kept = tmp_path / "out", {}
    weights = model()
    for step in range(1, 4):
        train(weights, step)
        kept[step] = {name: value.clone() for name, value in weights.items()}
        store.save({"model": weights}, step, "policy")
        publish(store, out, base)
    engine.pull(out, 3)

    store.delete("policy@3")
    (back,) = publish(store, out, base)
    assert (back.step, back.version, back.is_full) == (2, 4, True)
    engine.pull(out, 4)
    check_equal(engine, kept[2])

    # Another step 3 replaces nothing that engines still have: all weights are published again.
    other = {name: value.clone() for name, value in kept[1].items()}
    train(other, 7)
    store.load("policy@1")
    store.save({"model": other}, 3, "policy")
    (again,) = publish(store, out, base)
    engine.pull(out, 5)
    check_equal(engine, other)
    # The new step 3 continues step 1, which is older than the published step 2.
    assert (again.step, again.is_full, again.reason) == (3, True, "the run no longer continues step 2")
    check_store(store.path)


def test_a_replaced_step_is_published_with_all_weights(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    publish(store, out, base)
    engine.pull(out, 1)
    train(weights, 3)
    store.save({"model": weights}, 1, "policy", if_exists="replace")
    (version,) = publish(store, out, base)
    assert version.is_full
    engine.pull(out, version.version)
    check_equal(engine, weights)


def test_retention_keeps_what_the_next_difference_needs(store: Store, tmp_path: Path, base: Path) -> None:
    store.config.retention = RetentionPolicy(keep_last=1)
    weights, out = model(), tmp_path / "out"
    with store.publish("policy", out, select="model", add=[base], timeout_s=0.2, poll_s=0.01) as publisher:
        for step in range(1, 6):
            train(weights, step)
            store.save({"model": weights}, step, "policy")
            store.gc(now=True)
            assert next(publisher).is_full is (step == 1)
        # Only the published step is kept open.
        train(weights, 9)
        store.save({"model": weights}, 6, "policy")
        store.gc(now=True)
        assert [info.step for info in store.checkpoints("policy")] == [5, 6]
        assert not next(publisher).is_full
    store.gc(now=True)
    # Without a publisher that holds it, the published checkpoint goes, and the next version has all weights.
    train(weights, 10)
    store.save({"model": weights}, 7, "policy")
    store.gc(now=True)
    (version,) = publish(store, out, base)
    assert version.is_full
    assert version.reason.startswith("step 6 cannot be read: ")
    check_store(store.path)


def test_a_restarted_publisher_keeps_what_is_published(store: Store, tmp_path: Path, base: Path) -> None:
    store.config.retention = RetentionPolicy(keep_last=1)
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    publish(store, out, base)
    with store.publish("policy", out, select="model", add=[base], timeout_s=60, poll_s=0.01) as publisher:
        found: list[WeightVersion] = []
        thread = threading.Thread(target=lambda: found.append(next(publisher)))
        thread.start()
        wait_until_open(store, "policy@1")
        train(weights, 2)
        store.save({"model": weights}, 2, "policy")
        thread.join(60)
    assert [(version.step, version.is_full) for version in found] == [(2, False)]


def test_a_run_at_a_remote_is_published(store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    weights, out = model(), tmp_path / "out"
    store.remotes.add("nas", str(tmp_path / "nas"))
    other = Store.init(tmp_path / "other")
    other.remotes.add("nas", str(tmp_path / "nas"))
    options: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 5, "poll_s": 0.01}
    with other.publish("policy", out, remote="nas", **options) as publisher:
        for step in range(1, 4):
            train(weights, step)
            store.push(store.save({"model": weights}, step, "policy"), "nas")
            version = next(publisher)
            assert (version.step, version.is_full) == (step, step == 1)
            engine.pull(out, version.version)
            check_equal(engine, weights)
    check_store(other.path)


def test_versions_before_the_kept_full_ones_are_removed_whole(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 0, "policy")
    publish(store, out, base)
    engine.pull(out, 1)
    for step in range(1, 12):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        publish(store, out, base, full_every=3, keep_full=2)
    versions = sorted(path.name for path in out.glob("weight_*"))
    assert versions == [f"weight_v{number:06d}" for number in range(7, 13)]
    full = [path.parent.name for path in sorted(out.glob("*/config.json"))]
    assert full == ["weight_v000007", "weight_v000010"]
    assert [path.name for path in out.glob(".*")] == [".ckstore"]
    engine.pull(out, 12)  # from version 1, which is gone
    check_equal(engine, weights)


def test_large_differences_become_all_weights(store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    publish(store, out, base)
    weights = model(seed=1)
    store.save({"model": weights}, 2, "policy")
    (version,) = publish(store, out, base, full_above=0.1)
    assert version.reason == "the differences are larger than 0.1 of the weights"
    engine.pull(out, 2)
    check_equal(engine, weights)
    assert [path.name for path in out.glob(".*")] == [".ckstore"]


@pytest.mark.parametrize("change", ["name", "shape", "dtype"])
def test_another_model_is_published_with_all_weights(
    change: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    publish(store, out, base)
    engine.pull(out, 1)
    last = weights.pop(NAMES[0])
    changed = {"name": ("other", last), "shape": (NAMES[0], last[1:].clone()), "dtype": (NAMES[0], last.float())}
    weights |= [changed[change]]
    store.save({"model": weights}, 2, "policy")
    (version,) = publish(store, out, base)
    assert version.reason == "the names, dtypes or shapes of the weights changed"
    engine.pull(out, 2)
    check_equal(engine, weights)


def test_a_view_and_an_empty_tensor_are_published(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    out, memory = tmp_path / "out", torch.arange(600, dtype=torch.int32).reshape(20, 30)
    state = {"turned": memory.T, "rows": memory[3:9], "none": torch.zeros(0, 3), "one": torch.tensor(1.5)}
    for step in range(1, 4):
        memory[step, step * 2] += 1000
        state["one"] += 1
        store.save(state, step, "policy")
        publish(store, out, base, select=None)
        engine.pull(out, step)
        check_equal(engine, state)


@pytest.mark.parametrize("form", ["overwrite", "xor"])
def test_weights_that_exchange_their_parts_of_a_buffer_are_published(
    form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    both = torch.arange(2.0**19).reshape(2, -1)
    store.save({"model": {"w": both[0], "v": both[1]}}, 1, "policy")
    out = tmp_path / "out"
    options: dict[str, Any] = {"difference": form, "full_above": 1.0}
    with store.publish("policy", out, select="model", add=[base], timeout_s=0, **options) as publisher:
        assert next(publisher).is_full
        engine.pull(out, 1)
        store.save({"model": {"w": both[1], "v": both[0]}}, 2, "policy")
        next(publisher)
        engine.pull(out, 2)

    served = engine.weights()
    assert torch.equal(served["w"], both[1])
    assert torch.equal(served["v"], both[0])
    check_store(store.path)


@pytest.mark.parametrize("form", ["overwrite", "xor"])
def test_a_large_tensor_is_compared_in_parts(
    form: str, store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """It is read 8 MiB at a time."""
    state, out = {"w": torch.zeros(5_000_000)}, tmp_path / "out"
    for step in (1, 2):
        state["w"][torch.tensor([step, 3_000_000 + step, 4_999_999])] = step
        store.save(state, step, "policy")
        publish(store, out, base, select=None, difference=form)
        engine.pull(out, step)
        check_equal(engine, state)


def test_equal_weights_are_a_version_without_tensors(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    for step in (1, 2):
        store.save({"model": weights, "optimizer": torch.full((3,), step)}, step, "policy")
        publish(store, out, base)
    assert [path.name for path in (out / "weight_v000002").glob("*.safetensors")] == []
    engine.pull(out, 2)
    check_equal(engine, weights)


def test_committed_files_of_a_trainer_are_published(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out, folder = model(), tmp_path / "out", tmp_path / "checkpoint"
    shutil.copytree(base, folder)
    for step in range(1, 4):
        train(weights, step)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        if step == 3:
            (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}\n')
        store.commit(folder, step=step, run="policy")
        (version,) = publish(store, out, base, select=None, add=[])
        assert version.is_full is (step != 2)
        engine.pull(out, step)
        check_equal(engine, weights)
        # Differences cannot change the configuration, so it is published with all weights.
        assert (engine.local / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_a_publisher_waits_for_the_run_and_for_each_step(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    steps: list[int] = []

    def follow() -> None:
        with Store.open(store.path).publish(
            "policy", out, select="model", add=[base], timeout_s=60, poll_s=0.01
        ) as publisher:
            for version in publisher:
                steps.append(version.step)
                if version.step == 5:
                    break

    thread = threading.Thread(target=follow)
    thread.start()
    for step in range(1, 6):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        time.sleep(0.02)
    thread.join(60)
    assert not thread.is_alive()
    # It may pass over steps that a newer one replaced, and never the last one.
    assert steps == sorted({*steps})
    assert steps[-1] == 5
    engine.pull(out, newest_version(out))
    check_equal(engine, weights)


def test_a_ref_other_than_latest(store: Store, tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    for step, reward in ((1, 0.5), (2, 0.9), (3, 0.1)):
        store.save({"model": model(step)}, step, "policy", metrics={"reward": reward})
    (version,) = publish(store, out, base, ref="best:reward")
    assert version.step == 2
    with pytest.raises(NoSuchRef, match="nonesuch"):  # and no warning, since it does not wait
        publish(store, out, base, ref="nonesuch")
    assert newest_version(out) == 1


@pytest.mark.parametrize("ref", ["best:reward", "latest-healthy", "chosen"])
def test_a_ref_that_names_nothing_yet_is_waited_for(store: Store, tmp_path: Path, base: Path, ref: str) -> None:
    # Evaluators add the metric after the save, and a tag can be set later.
    out, weights = tmp_path / "out", model()
    bad = {name: torch.full_like(value, torch.nan) for name, value in weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        store.save({"model": bad}, 1, "policy")

    def later() -> None:
        with Store.open(store.path) as other:
            other.save({"model": weights}, 2, "policy")
            other.annotate("policy@2", metrics={"reward": 1.0})
            other.tag("chosen", "policy@2")

    with store.publish("policy", out, select="model", add=[base], ref=ref, timeout_s=60, poll_s=0.02) as publisher:
        timer = threading.Timer(0.3, later)
        timer.start()
        with pytest.warns(CkstoreWarning, match="until .* names a checkpoint") as told:
            assert next(publisher).step == 2
        timer.join()
    assert len([one for one in told if "names a checkpoint" in str(one.message)]) == 1
    check_store(store.path)


def test_one_publisher_of_a_directory_and_one_run(store: Store, tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    store.save({"model": model()}, 1, "policy")
    store.save({"model": model()}, 1, "other")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        assert next(publisher).version == 1
        with pytest.raises(InUse, match="another process publishes weights"):
            store.publish("policy", out)
    with pytest.raises(BadInput, match="has the weights of the run policy, and other is to be published"):
        next(store.publish("other", out, select="model", add=[base], timeout_s=0))
    (out / "weight_v000002").mkdir()
    with pytest.raises(BadInput, match=r"weight_v000002 was not published by this version of ckstore"):
        publish(store, out, base)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"difference": "zip"}, "difference must be overwrite or xor"),
        ({"full_every": 0}, "full_every must be a number of versions"),
        ({"keep_full": 1.5}, "keep_full must be a number of versions"),
        ({"full_above": 0}, "full_above must be a share"),
        ({"timeout_s": -1}, "timeout_s must be"),
        ({"poll_s": 0}, "poll_s must be"),
        ({"format": "vllm"}, "format must be sglang"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], match: str, store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=match):
        store.publish("policy", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_refused_and_nothing_appears(store: Store, tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(BadInput, match="is in the store"):
        store.publish("policy", store.path / "out")
    store.save({"model": model(), "step": 1}, 1, "policy")
    with pytest.raises(BadInput, match="from_pretrained reads the state dict of a model"):
        publish(store, out, base, select=None)
    # Engines replace all files of their copy, so a version with all weights needs the configuration.
    with pytest.raises(BadInput, match=r"from_pretrained needs config\.json"):
        publish(store, out, base, add=[])
    assert newest_version(out) == 0
    publish(store, out, base)
    assert newest_version(out) == 1


def test_damage_is_reported_and_the_next_step_is_published(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    store.save({"model": weights}, 1, "policy")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        next(publisher)
        train(weights, 1)
        before = {*store.path.glob("blobs/*/*")}
        store.save({"model": weights}, 2, "policy")
        for blob in {*store.path.glob("blobs/*/*")} - before:
            blob.chmod(0o600)
            blob.write_bytes(b"x" * blob.stat().st_size)
        with pytest.raises(DamagedBlob):
            next(publisher)
        assert newest_version(out) == 1
        weights = model(3)
        store.save({"model": weights}, 3, "policy")
        assert next(publisher).step == 3
    engine.pull(out, newest_version(out))
    check_equal(engine, weights)


def test_a_wrong_copy_or_a_damaged_version_is_noticed_by_the_engine(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """That the checksums say something: an engine with other weights must not serve them."""
    weights, out = model(), tmp_path / "out"
    for step in (1, 2):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        publish(store, out, base)
    engine.pull(out, 1)
    path = engine.local / "model.safetensors"
    data = bytearray(path.read_bytes())
    for at in range(len(data) - 30_000, len(data)):
        data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(WrongWeights):
        engine.pull(out, 2)


def test_another_selection_after_a_restart_is_published_with_all_weights(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """Also of the same checkpoint: engines have the weights that were selected before."""
    weights, average, out = model(1), model(2), tmp_path / "out"
    store.save({"model": weights, "ema": average}, 1, "policy")
    publish(store, out, base)
    engine.pull(out, 1)
    (version,) = publish(store, out, base, select="ema")
    assert version.reason == "another part of the state is selected"
    engine.pull(out, 2)
    check_equal(engine, average)
    store.save({"model": weights, "ema": average, "more": 1}, 2, "policy")
    (version,) = publish(store, out, base)
    assert version.is_full
    engine.pull(out, 3)
    check_equal(engine, weights)


def test_damage_of_the_published_checkpoint_is_not_that_of_the_newest(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    out = tmp_path / "out"
    store.save({"model": model(1)}, 1, "policy")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        next(publisher)
        for blob in store.path.glob("blobs/*/*"):
            blob.chmod(0o600)
            blob.write_bytes(b"x" * blob.stat().st_size)
        weights = {name: value + 1 for name, value in model(1).items()}
        store.save({"model": weights}, 2, "policy")
        version = next(publisher)
    assert version.reason.startswith("step 1 cannot be read: ")
    engine.pull(out, 2)
    check_equal(engine, weights)
    assert [info.damaged for info in store.checkpoints("policy")] == [True, False]


def test_a_lack_of_memory_is_no_damage_of_the_published_checkpoint(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def no_memory_for_the_second(nbytes: int) -> memoryview:
        asked.append(nbytes)
        if len(asked) == 2:  # the first is for the new weights, and the second for the published ones
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return aligned_buffer(nbytes)

    store.config.threads = 1
    weights = model()
    store.save({"model": weights}, 1, "policy")
    with store.publish("policy", tmp_path / "out", select="model", add=[base], timeout_s=0) as versions:
        next(versions)
        train(weights, 1)
        store.save({"model": weights}, 2, "policy")
        with monkeypatch.context() as patch:
            patch.setattr(regions, "aligned_buffer", no_memory_for_the_second)
            with pytest.raises(CkstoreError, match="publish failed: Cannot allocate memory"):
                next(versions)
        version = next(versions)

    assert (version.reason, version.step) == ("", 2)
    check_store(store.path)


def test_a_version_that_appeared_is_returned_although_an_error_followed(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    store.save({"model": model(1)}, 1, "policy")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        assert publisher.newest is None
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_name", _refuse)
            with pytest.raises(CkstoreError, match="may not survive a power cut"):
                next(publisher)
        assert next(publisher).version == 1
        store.save({"model": model(2)}, 2, "policy")
        with monkeypatch.context() as patch:
            patch.setattr(type(publisher._directory), "prune", _refuse)
            with pytest.warns(CkstoreWarning, match="older versions .* were not removed"):
                assert next(publisher).version == 2
        store.save({"model": model(3)}, 3, "policy")
        with monkeypatch.context() as patch:
            patch.setattr(type(publisher._directory), "record_greatest", _refuse)
            with pytest.warns(CkstoreWarning, match="the number of version 3 was not recorded"):
                assert next(publisher).version == 3
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        assert publisher.newest is not None
        assert (publisher.newest.version, [*publisher]) == (3, [])


def test_a_difference_is_to_the_version_that_appeared_although_an_error_followed(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, out = model(), tmp_path / "out"
    with store.publish("policy", out, select="model", add=[base], difference="xor", timeout_s=0) as publisher:
        for step in (1, 2, 3):
            train(weights, step)
            store.save({"model": weights}, step, "policy")
            if step != 2:
                assert next(publisher).is_full == (step == 1)
                continue
            with monkeypatch.context() as patch:
                patch.setattr(files, "sync_name", _refuse)
                with pytest.raises(CkstoreError, match="may not survive a power cut"):
                    next(publisher)
    engine.pull(out, 3)
    check_equal(engine, weights)


def _refuse(*_: object) -> None:
    raise OSError(16, "Device busy")


def test_a_close_by_another_thread_ends_a_publication(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    store.save({"model": model()}, 1, "policy")
    publisher = store.publish("policy", out, select="model", add=[base])
    begun, may_end = threading.Event(), threading.Event()
    export = export_pretrained

    def slowly(*args: Any, **options: Any) -> Any:
        begun.set()
        may_end.wait(60)
        return export(*args, **options)

    monkeypatch.setattr(publisher_module, "export_pretrained", slowly)
    thread = threading.Thread(target=next, args=(publisher,))
    thread.start()
    assert begun.wait(60)
    publisher.close()
    may_end.set()
    thread.join(60)
    assert publish(store, out, base) == []  # the directory is free again


def test_a_directory_that_was_replaced_is_refused(store: Store, tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    store.save({"model": model()}, 1, "policy")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        out.rename(tmp_path / "away")
        with store.publish("policy", out, select="model", add=[base], timeout_s=0) as other:
            with pytest.raises(InUse, match="was removed or replaced"):
                next(publisher)
            assert next(other).version == 1


def test_without_an_earlier_version_all_weights_are_published(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    for step in range(1, 6):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        (version,) = publish(store, out, base)
        if step in (2, 4):
            shutil.rmtree(out / f"weight_v{step - 1:06d}")
        elif step > 1:
            assert version.reason == "an earlier version is missing"
    engine.pull(out, 5)
    check_equal(engine, weights)


def test_weights_that_engines_cannot_be_given_are_refused(store: Store, tmp_path: Path, base: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for i in (1, 2):
        torch.save({f"w{i}": torch.ones(3)}, folder / f"pytorch_model-0000{i}-of-00002.bin")
    store.commit(folder, step=1, run="policy")
    with pytest.raises(BadInput, match=r"several \.bin files"):
        publish(store, out, base, select=None, add=[])
    store.save({"model": model()}, 1, "other")
    with pytest.raises(BadInput, match="other@1, and the run policy is to be published"):
        publish(store, out, base, ref="other@1")
    for add in ("base", base, None, [tmp_path / "missing"]):
        with pytest.raises(BadInput, match=r"add|cannot be read"):
            publish(store, out, base, add=add)
    assert newest_version(out) == 0


def test_added_files_are_found_from_another_directory(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save({"model": model()}, 1, "policy")
    with store.publish("policy", "out", select="model", add=["base"], timeout_s=0) as publisher:
        monkeypatch.chdir("/")
        assert next(publisher).path == tmp_path / "out" / "weight_v000001"


def test_a_changed_file_to_add_is_published_with_all_weights(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    """Also if no checkpoint is new, since engines have the old file until then."""
    weights, out, tokenizer = model(), tmp_path / "out", base / "tokenizer.json"
    tokenizer.write_text("one")
    store.save({"model": weights}, 1, "policy")
    with store.publish("policy", out, select="model", add=[base], timeout_s=0.01, poll_s=0.02) as publisher:
        next(publisher)
        engine.pull(out, 1)
        train(weights, 1)
        store.save({"model": weights}, 2, "policy")
        _replace(tokenizer, "two")
        version = next(publisher)
        assert (version.version, version.step, version.reason) == (2, 2, "the files to add changed")
        engine.pull(out, 2)
        assert (engine.local / "tokenizer.json").read_text() == "two"

        # The same checkpoint; a touched file with the same content is no change.
        _replace(tokenizer, "six")
        version = next(publisher)
        assert (version.version, version.step, version.is_full) == (3, 2, True)
        _replace(tokenizer, "six")
        with pytest.raises(StopIteration):
            next(publisher)
    engine.pull(out, 3)
    assert (engine.local / "tokenizer.json").read_text() == "six"
    check_equal(engine, weights)
    # While no publisher ran: a new file.
    (base / "merges.txt").write_text("a b")
    (version,) = publish(store, out, base)
    assert version.reason == "the files to add changed"
    engine.pull(out, 4)
    assert (engine.local / "merges.txt").read_text() == "a b"
    assert publish(store, out, base) == []
    check_store(store.path)


def test_a_file_to_add_that_changes_while_it_is_published_is_an_error(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version never has another content of the file than the one that the next check compares with."""
    weights, out, tokenizer = model(), tmp_path / "out", base / "tokenizer.json"
    tokenizer.write_text("one")
    store.save({"model": weights}, 1, "policy")
    export = export_pretrained

    def after_a_change(*args: Any, **options: Any) -> Any:
        _replace(tokenizer, "two")
        return export(*args, **options)

    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        with monkeypatch.context() as patch:
            patch.setattr(publisher_module, "export_pretrained", after_a_change)
            with pytest.raises(BadInput, match=r"tokenizer\.json, which is to be added, was changed"):
                next(publisher)
        assert newest_version(out) == 0
        tokenizer.unlink()
        next(publisher)
        _replace(tokenizer, "three")
        version = next(publisher)
    assert (version.version, version.reason) == (2, "the files to add changed")
    assert (version.path / "tokenizer.json").read_text() == "three"


def _replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def test_an_overwrite_can_be_applied_again(store: Store, tmp_path: Path, base: Path, engine: WeightEngine) -> None:
    """An engine that was killed before it noted the version applies it again."""
    weights, out = model(), tmp_path / "out"
    for step in (1, 2):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        publish(store, out, base)
        engine.pull(out, step)
    (engine.local / "pulled-version").write_text("1")
    engine.pull(out, 2)
    check_equal(engine, weights)


def test_a_killed_removal_leaves_no_part_of_a_version(
    store: Store, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine takes a directory without an index for all weights."""
    weights, out = model(), tmp_path / "out"
    for step in (1, 2):
        train(weights, step)
        store.save({"model": weights}, step, "policy")
        publish(store, out, base)
    with monkeypatch.context() as patch:
        patch.setattr(new_tree, "_remove", lambda *_: None)  # it dies before it removes any file
        store.save({"model": weights, "more": torch.ones(1)}, 3, "policy")
        publish(store, out, base, full_every=1, keep_full=1)
    assert [path.name for path in out.glob("weight_*")] == ["weight_v000003"]
    assert len([*out.glob(".weight_*")]) == 2
    assert publish(store, out, base) == []  # the next publisher removes the rest
    assert [path.name for path in out.glob(".*")] == [".ckstore"]


@pytest.mark.parametrize("removed", [(2,), (1, 2)])
@pytest.mark.parametrize("then", ["replaced", "replaced after a restart", "deleted"])
def test_the_number_of_a_removed_version_is_not_used_again(
    then: str, removed: tuple[int, ...], store: Store, tmp_path: Path, base: Path
) -> None:
    """An engine that has the removed version would take another one of its number for it, and the next for its own."""
    weights, out, engine = model(), tmp_path / "out", WeightEngine(tmp_path / "local", base)
    other = {name: value.clone() for name, value in weights.items()}
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as first:
        store.save({"model": weights}, 1, "policy")
        next(first)
        train(weights, 2)
        store.save({"model": weights}, 2, "policy")
        next(first)
        engine.pull(out, 2)
        for number in removed:
            shutil.rmtree(out / f"weight_v{number:06d}")
        if then != "replaced":
            first.close()
        if then == "deleted":
            store.delete(2)
        else:
            train(other, 3)  # other tensors
            store.save({"model": other}, 2, "policy", if_exists="replace")
        version = next(first) if then == "replaced" else publish(store, out, base)[0]
    assert (version.version, version.is_full, version.reason) == (3, True, "an earlier version is missing")
    engine.pull(out, 3)
    check_equal(engine, other)


def test_a_wrong_record_of_the_greatest_version_is_refused(store: Store, tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    store.save({"model": model()}, 1, "policy")
    publish(store, out, base)
    (out / ".ckstore" / "greatest-version").write_text("none")
    with pytest.raises(BadInput, match="greatest-version was not written by this version of ckstore"):
        publish(store, out, base)


def test_a_version_that_was_taken_away_is_no_base(
    store: Store, tmp_path: Path, base: Path, engine: WeightEngine
) -> None:
    weights, out = model(), tmp_path / "out"
    with store.publish("policy", out, select="model", add=[base], timeout_s=0) as publisher:
        for step in (1, 2, 3):
            if step == 3:
                (out / "weight_v000002").rename(tmp_path / "away")
                engine.pull(out, 1)
            train(weights, step)
            store.save({"model": weights}, step, "policy")
            version = next(publisher)
            assert version.version == step
    engine.pull(out, 3)
    check_equal(engine, weights)


def test_a_version_says_what_it_is(store: Store, tmp_path: Path, base: Path) -> None:
    weights, out = model(), tmp_path / "out"
    ids = {}
    for step in (1, 2):
        train(weights, step)
        ids[step] = store.save({"model": weights}, step, "policy").id
        publish(store, out, base)
    about = json.loads((out / "weight_v000002" / "ckstore-version.json").read_text())
    assert about == {
        "format": "ckstore-weights",
        "format_version": 1,
        "version": 2,
        "run": "policy",
        "step": 2,
        "id": ids[2],
        "content": about["content"],
        "added": about["added"],
        "is_full": False,
        "reason": "",
        "dtype": "",
        "out_of_range": 0,
    }
    assert load_file(out / "weight_v000001" / "model.safetensors").keys() == weights.keys()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(st.sampled_from(["train", "back", "delete", "gc", "pull", "dense", "full"]), min_size=2, max_size=12)
)
def test_law_engines_have_what_the_newest_version_says(
    acts: list[str], tmp_path_factory: pytest.TempPathFactory, base: Path
) -> None:
    """Whatever the trainer does, an engine that pulls the newest version has the newest checkpoint, bit for bit."""
    folder = tmp_path_factory.mktemp("law")
    store, out = Store.init(folder / "store"), folder / "out"
    engines = [WeightEngine(folder / f"engine{i}", base) for i in range(2)]
    saved: dict[str, dict[str, torch.Tensor]] = {}
    weights, step = model(), 0
    for i, act in enumerate(acts):
        if act in ("train", "dense"):
            step += 1
            train(weights, i, share=0.9 if act == "dense" else 0.02)
            info = store.save({"model": weights}, step, "policy", if_exists="replace")
            saved[info.id] = {name: value.clone() for name, value in weights.items()}
        elif act == "back" and step > 1:
            step -= 2
        elif act == "delete" and (latest := store.latest("policy")) is not None:
            store.delete(latest)
        elif act == "gc":
            store.gc(now=True)
        publish(store, out, base, full_every=2 if act == "full" else 50, keep_full=1)
        newest = store.latest("policy")
        if newest is not None:
            for engine in engines[: 1 if act != "pull" else 2]:
                engine.pull(out, newest_version(out))
                check_equal(engine, saved[newest.id])
    check_store(store.path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.init(tmp_path / "store") as store:
        yield store
    assert not [path for path in os.listdir("/proc/self/fd") if tmp_path / "out" in _of(path)]


def _of(fd: str) -> tuple[Path, ...]:
    try:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
    except FileNotFoundError:
        return ()
    return (path, *path.parents)


def test_new_weights_are_read_past_the_page_cache(journaled_tmp_path: Path) -> None:
    """A save writes past the cache, and filling the cache would take longer than the rest of a publication."""
    base, weights = journaled_tmp_path / "base", {"w": torch.zeros(24 * 2**20, dtype=torch.uint8)}
    base.mkdir()
    (base / "config.json").write_text("{}")
    with Store.init(journaled_tmp_path / "store") as store:
        store.save({"model": weights}, 1, "policy")
        words: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 0}
        with store.publish("policy", journaled_tmp_path / "versions", **words) as versions:
            next(versions)
            before = {*store.path.glob("blobs/*/*")}
            weights["w"][5] = 1
            store.save({"model": weights}, 2, "policy")

            assert not next(versions).is_full

            (new,) = {*store.path.glob("blobs/*/*")} - before
            fd = os.open(new, os.O_RDONLY)
            try:
                assert not files.is_cached(fd, 12 * 2**20)
                weights["w"][5] = 2
                store.save({"model": weights}, 3, "policy")

                assert not next(versions).is_full  # reads the same blob again, now as that of the previous version

                # Each of the two readings may have cached the pages around one byte.
                assert sum(files.is_cached(fd, at) for at in range(0, 24 * 2**20, 4 * 2**20)) <= 3
            finally:
                os.close(fd)
        check_store(store.path)
