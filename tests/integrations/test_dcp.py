"""`torch.distributed.checkpoint` into a store and back, in real groups of processes joined by gloo.

The long form, with 1, 2, 4 and 8 processes, is `test_dcp_many.py`. Ideas of torch's own suite (torch 2.13,
test/distributed/checkpoint) that are mirrored here, against our writer and reader: test_fsdp_model_state,
test_fsdp_optim_state, test_state_dict and test_fsdp2 (states of FSDP2 through `get_state_dict`), test_tp_checkpoint and
test_dtensor_checkpoint (placements, replicated tensors), test_planner (missing keys, sizes that differ, plan caching),
test_dedup_tensors (replicated once), test_nested_dict and test_save_load_api (values that are no tensors, `Stateful`),
test_checkpoint (failing writers on one rank), test_async_process_executor and test_state_dict_saver (async by thread
and by process).
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import subprocess
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

import ckstore
from ckstore import BadInput, CannotStore, DamagedBlob, DoesNotFit, RankFailed, RankMismatch, Store
from ckstore.integrations import dcp
from ckstore.integrations.dcp import CkstoreReader
from ckstore.model.manifest.tensor_cuts import Block
from ckstore.ops.read.regions import RegionReader
from ckstore.ops.refs.find import open_directory
from tests.format import reader
from tests.integrations.dcp_cases import PLACED, digest, whole
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.damage import flip
from tests.support.gloo import TIMEOUT_S, Group
from tests.support.look import directory_of
from tests.support.requirements import require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_store
from tests.support.torch_versions import has_argument

CASES = Path(__file__).with_name("dcp_cases.py")


@pytest.fixture(scope="module")
def pair(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two processes."""
    with Group(2, tmp_path_factory.mktemp("pair"), CASES, python=warm / "python") as group:
        yield group


@pytest.fixture(scope="module")
def alone(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One process."""
    with Group(1, tmp_path_factory.mktemp("alone"), CASES, python=warm / "python") as group:
        yield group


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def stagings(store: Store) -> list[str]:
    return sorted(path.name for path in (store.path / "staging").iterdir())


needs_fsdp2 = pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of torch 2.6 needs a GPU")


def test_the_frames_that_torch_sends_with_an_error_can_be_pickled() -> None:
    frames = traceback.extract_stack()

    again = pickle.loads(pickle.dumps(frames))

    described = [[(one.filename, one.lineno, one.name, one.line) for one in stack] for stack in (again, frames)]
    assert described[0] == described[1]


@needs_fsdp2
def test_fsdp2_with_its_optimizer_comes_back_bit_for_bit_on_as_many_ranks_and_on_fewer(
    pair: Group, alone: Group, store: Store
) -> None:
    saved = pair.run("save_fsdp", store=str(store.path), step=1)

    assert pair.run("load_fsdp", store=str(store.path), step=1) == [state for state, _ in saved]
    assert alone.run("load_fsdp", store=str(store.path), step=1) == [saved[0][0]]
    assert digest(store.load(1)) == saved[0][0]
    assert stagings(store) == []


@needs_fsdp2
def test_fsdp2_saved_by_one_comes_back_on_two(pair: Group, alone: Group, store: Store) -> None:
    ((state, _),) = alone.run("save_fsdp", store=str(store.path), step=1)

    assert pair.run("load_fsdp", store=str(store.path), step=1) == [state, state]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_shards_by_rows_and_by_columns_are_whole_tensors_for_one_process(
    pair: Group, alone: Group, store: Store, tmp_path: Path
) -> None:
    pair.run("save_shards", store=str(store.path), step=2)
    exported = store.export_safetensors(2, tmp_path / "out")

    loaded: Any = store.load(2)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        for name in PLACED:
            assert torch.equal(loaded["model"][name], whole(name))
            assert torch.equal(file.get_tensor(f"model.{name}"), whole(name))
    assert exported.tied == {}
    store.export(2, tmp_path / "torch.pt", format="torch")
    store.export(2, tmp_path / "dcp", format="dcp")
    as_torch = torch.load(tmp_path / "torch.pt", weights_only=True)
    peer: Any = {"model": {name: torch.zeros_like(whole(name)) for name in PLACED}, "lr": 0.0}
    torch_load(peer, checkpoint_id=tmp_path / "dcp")
    for other in (as_torch, peer):
        assert other["lr"] == 0.5
        assert all(torch.equal(other["model"][name], whole(name)) for name in PLACED)
    assert alone.run("load_shards", store=str(store.path), step=2) == [True]
    assert pair.run("load_shards", store=str(store.path), step=2) == [True, True]
    others = {name: None if dim is None else len(whole(name).shape) - 1 - dim for name, dim in PLACED.items()}
    assert pair.run("load_shards", store=str(store.path), step=2, dims=others) == [True, True]
    with store.open_checkpoint(2) as checkpoint:
        assert torch.equal(checkpoint.slice("model.wide")[5:9], whole("wide")[5:9])
        assert torch.equal(checkpoint["model.cube"], whole("cube"))
    target = {"model": {name: torch.zeros_like(whole(name)) for name in PLACED}, "lr": 0.0}
    store.load_into(target, 2)
    assert all(torch.equal(target["model"][name], whole(name)) for name in PLACED)  # type: ignore[index]


def test_what_many_ranks_saved_is_what_the_page_of_the_format_says(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=2)

    checkpoint = reader.Checkpoint(checkpoint_dir(store.path, "main", 2))
    state = checkpoint.state()
    assert checkpoint.content() == checkpoint.manifest["content"]
    assert checkpoint.manifest["requires"] == ["shards"]
    assert checkpoint.manifest["ranks"]["world_size"] == 2
    for name in PLACED:
        assert state["model"][name].data == whole(name).numpy().tobytes()


def test_a_reader_refuses_what_it_does_not_know(pair: Group, store: Store) -> None:
    from ckstore.model.digest import algorithm_of

    pair.run("save_shards", store=str(store.path), step=2)
    path = checkpoint_dir(store.path, "main", 2) / "manifest.json"
    text = path.read_bytes()
    digest_there, body = re.fullmatch(rb'\{"digest":"([^"]+)","manifest":(.*)\}\n', text, re.DOTALL).groups()  # type: ignore[union-attr]
    body = body.replace(b'"requires":["shards"]', b'"requires":["shards","encoded"]')
    again = algorithm_of(digest_there.decode()).digest(body).encode()
    path.unlink()
    path.write_bytes(b'{"digest":"' + again + b'","manifest":' + body + b"}\n")

    with pytest.raises(ckstore.NewerFormat, match="encoded"):
        Store.open(store.path, readonly=True).load(2)


def test_ranks_that_mean_different_steps_or_runs_all_fail_and_nothing_is_visible(pair: Group, store: Store) -> None:
    for given in ([("main", 5), ("main", 6)], [("main", 5), ("other", 5)]):
        arguments = [{"store": str(store.path), "run": run, "step": step} for run, step in given]
        answers = pair.call_each("save_at", arguments)

        assert [type(answer) for answer in answers] == [RankMismatch, RankMismatch]
        assert "rank 1" in str(answers[0])
        assert str(given[1][0 if given[1][0] == "other" else 1]) in str(answers[0])
        assert store.checkpoints() == []
        assert stagings(store) == []


def test_the_peer_scatters_a_checkpoint_over_directories_that_are_named_by_clocks(pair: Group, tmp_path: Path) -> None:
    """What the test before is about, as on the forum: each rank is told that all went well, and no rank can load."""
    folder = tmp_path / "peer"
    saved = pair.call_each("peer_scatters", [{"folder": str(folder), "clock": clock} for clock in (1700, 1701)])

    assert saved == [True, True]
    names = {path.name: sorted(file.name for file in path.iterdir()) for path in folder.iterdir()}
    assert names == {"step-1700": [".metadata", "__0_0.distcp"], "step-1701": ["__1_0.distcp"]}
    for name in names:
        (answer, _) = pair.call("peer_loads", folder=str(folder / name))
        # torch 2.9 finds that it has no metadata.
        assert any(text in str(answer) for text in ("FileNotFoundError", "No such file", "metadata is not None"))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_at_one_rank_fails_the_save_on_all(
    pair: Group, store: Store, rank: int, number: int
) -> None:
    answers = pair.call("fail_at", store=str(store.path), step=9, rank=rank, number=number)

    for answer in answers:
        assert isinstance(answer, RankFailed)
        assert list(answer.causes) == [rank]
    assert store.checkpoints() == []
    pair.run("save_shards", store=str(store.path), step=9)
    assert stagings(store) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_the_disk_at_one_rank_that_passes_fails_nothing(pair: Group, store: Store, rank: int) -> None:
    answers = pair.run("save_patiently", store=str(store.path), step=9, rank=rank, times=2)

    (info,) = store.checkpoints()
    assert answers == [info.id, info.id]
    assert {event.event for event in store.events()} >= {"retried", "saved"}
    assert stagings(store) == []


def test_all_ranks_go_on_without_a_save_or_none(pair: Group, store: Store) -> None:
    given = {"store": str(store.path), "on_failure": "warn", "retries": 0}
    answers = pair.run("save_patiently", step=9, rank=1, times=10**6, **given)

    assert [answer[:2] for answer in answers] == [["main@9", 1]] * 2
    assert all("Input/output error" in answer[2] for answer in answers)
    for answer in pair.call("save_patiently", step=9, rank=1, times=0, bad=True, **given):
        assert isinstance(answer, CannotStore | RankFailed)
    assert store.checkpoints() == []


def test_the_writer_of_torch_reports_success_when_a_thread_of_its_own_fails(pair: Group, tmp_path: Path) -> None:
    """What the test before is about: the same error in the peer's second thread is lost."""
    answers = pair.call("peer_loses_an_error", folder=str(tmp_path / "peer"))

    assert answers == ["saved", "saved"]


def test_a_value_that_cannot_be_stored_is_named_on_all_ranks(pair: Group, store: Store) -> None:
    answers = pair.call("save_odd_value", store=str(store.path), step=9)

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    assert any(isinstance(cause, CannotStore) and cause.path == "a.b" for cause in answers[0].causes.values())
    assert store.checkpoints() == []


@pytest.mark.parametrize("odd", [False, True], ids=["an error of Python", "an error that no pickle brings back"])
def test_what_a_state_dict_raises_at_one_rank_reaches_all_at_once_and_the_next_save_works(
    pair: Group, store: Store, odd: bool
) -> None:
    for rank in (0, 1):
        begun = time.monotonic()
        answers = pair.call("save_breaking", store=str(store.path), step=9, rank=rank, odd=odd)

        assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
        said = "Odd: 3 and 4 do not go together" if odd else "ValueError: boom in state_dict"
        assert all(f"failed on all ranks, because of rank {rank}: {said}" in str(answer) for answer in answers)
        assert time.monotonic() - begun < TIMEOUT_S / 2
        assert store.checkpoints() == []
    pair.run("save_shards", store=str(store.path), step=9)
    assert stagings(store) == []


def test_what_a_state_dict_raises_at_one_rank_ends_a_save_in_the_background_on_all(pair: Group, store: Store) -> None:
    begun = time.monotonic()
    answers = pair.call("save_breaking", store=str(store.path), step=9, rank=1, odd=True, in_background=True)

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    assert all("saving main@9 failed on all ranks, because of rank 1: Odd: 3 and 4" in str(one) for one in answers)
    assert time.monotonic() - begun < TIMEOUT_S / 2
    pair.run("save_async", store=str(store.path), step=9, process=False)


@pytest.mark.parametrize("background", [False, True])
def test_an_error_of_torchs_own_checkpoints_that_is_not_an_exception_reaches_all_ranks(
    pair: Group, store: Store, background: bool
) -> None:
    answers = pair.call("save_in_vain", store=str(store.path), step=9, rank=1, in_background=background)

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    assert all("rank 1: CheckpointException" in str(answer) for answer in answers)
    for answer in pair.call("rank_zero_in_vain"):
        assert "CheckpointException" in repr(answer)


@pytest.mark.parametrize("wrong", [{"step": -1}, {"run": "a/b"}, {"typo": 1}], ids=lambda wrong: next(iter(wrong)))
def test_an_argument_that_is_wrong_at_one_rank_fails_the_save_on_all(
    pair: Group, store: Store, wrong: dict[str, Any]
) -> None:
    right = {"store": str(store.path), "step": 9}
    answers = pair.call_each("save_given", [right, {**right, **wrong}])

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    assert all(list(answer.causes) == [1] for answer in answers)
    assert store.checkpoints() == []
    pair.run("save_given", **right)


@pytest.mark.parametrize("where", ["save", "load"])
def test_what_an_object_raises_at_one_rank_fails_the_load_on_all(pair: Group, store: Store, where: str) -> None:
    pair.run("stateful", store=str(store.path), step=10)
    answers = pair.call("load_breaking", store=str(store.path), step=10, rank=1, where=where)

    assert [type(answer) for answer in answers] == [RankFailed, RankFailed]
    assert all("rank 1: ValueError: boom at the load" in str(answer) for answer in answers)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_an_error_of_ones_own_state_is_not_taken_for_a_lost_rank(store: Store) -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("cannot be captured now")

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    with pytest.raises(RuntimeError, match="cannot be captured now"):
        dcp.save(store, {"counter": Broken()}, 1)
    assert stagings(store) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_modules_and_optimizers_in_dicts_and_lists_are_loaded(store: Store) -> None:
    """DCP itself leaves those of a nested dict unloaded, without an error."""

    def made(seed: int) -> tuple[dict[str, Any], torch.nn.Linear, torch.nn.Linear, torch.optim.Adam]:
        torch.manual_seed(seed)
        one, two = torch.nn.Linear(3, 3), torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(one.parameters())
        one(torch.ones(3)).sum().backward()
        optimizer.step()
        inner: dict[str, Any] = {"model": one, "optimizer": optimizer, "epoch": seed}
        return (
            {"train": inner, "both": [two, seed], "pair": (two.weight.detach(), {"deep": [two]})},
            one,
            two,
            optimizer,
        )

    saved, one, two, optimizer = made(1)
    dcp.save(store, saved, 1)
    state, own_one, own_two, own_optimizer = made(2)
    before = state["train"]
    report = dcp.load(store, state, 1)
    assert not report.summary
    assert state["train"] is before
    assert state["train"]["model"] is own_one
    assert state["train"]["optimizer"] is own_optimizer
    assert state["both"] == [own_two, 1]
    assert state["pair"][1]["deep"] == [own_two]
    assert state["train"]["epoch"] == 1
    assert torch.equal(own_one.weight, one.weight)
    assert torch.equal(own_two.bias, two.bias)
    (kept, own_kept) = (next(iter(each.state.values()))["exp_avg"] for each in (optimizer, own_optimizer))
    assert torch.equal(own_kept, kept)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_checkpoint_that_a_tag_or_a_pin_names_stays_superseded(store: Store) -> None:
    first = dcp.save(store, {"w": torch.zeros(3000)}, 1)
    store.tag("good", 1)
    store.pin(1, "for the paper")

    second = dcp.save(store, {"w": torch.ones(3000)}, 1, if_exists="replace")

    assert store.info(1).id == second.id
    assert [note.startswith("the older checkpoint of main@1 is kept: ") for note in second.warnings] == [True]
    assert [tag.id for tag in store.tags()] == [pin.id for pin in store.pins()] == [first.id]
    assert torch.equal(store.load("good")["w"], torch.zeros(3000))
    assert stagings(store) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_rank_that_stood_still_is_told_that_what_it_saved_was_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = state_dict_saver.save

    def stand_still(*args: Any, **kwargs: Any) -> Any:
        metadata = real(*args, **kwargs)
        store.save({"w": 2}, 1, if_exists="replace")
        return metadata

    monkeypatch.setattr(state_dict_saver, "save", stand_still)
    info = dcp.save(store, {"w": torch.zeros(300)}, 1)

    assert info.id != store.info(1).id
    assert any("was replaced since" in warning for warning in info.warnings)


def test_stateful_objects_are_saved_and_loaded_as_their_state(pair: Group, store: Store) -> None:
    assert pair.run("stateful", store=str(store.path), step=10) == [(41, [0, 3, 6, 9, 12])] * 2


NOT_LOADED = {
    "model.wide": "shape [64, 49] wanted, found shape [64, 48]",
    "model.line": "a plain value (int) wanted, found a tensor",
}


def test_what_does_not_fit_is_refused_by_name_before_anything_is_loaded(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=2)

    for error in pair.call("load_other", store=str(store.path), step=2, strict=True):
        assert isinstance(error, DoesNotFit)
        assert error.missing == ("epoch", "model.more")
        assert set(error.unexpected) == {"model.cube", "model.scalar", "lr"}
        assert error.mismatched == NOT_LOADED
        assert "model.wide: shape [64, 49] wanted, found shape [64, 48]" in str(error)
        assert "strict=False" in error.hint


def test_a_lenient_load_takes_what_fits_and_reports_the_rest(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=2)

    for report in pair.run("load_other", store=str(store.path), step=2, strict=False):
        assert report.info == store.info(2)
        assert report.missing == ("epoch", "model.more")
        assert set(report.unexpected) == {"model.cube", "model.scalar", "lr"}
        assert report.not_loaded == NOT_LOADED
        assert report.cast == {"model.odd": "float32 to float64"}
        assert report.read_bytes == whole("odd").numel() * 4
        assert "do not fit, unchanged (2):" in str(report)
    for error in pair.call("load_nothing_that_fits", store=str(store.path), step=2):
        assert isinstance(error, DoesNotFit)
        assert error.missing == ("head",)


def test_loading_a_part_reads_only_what_holds_it(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=2)

    assert pair.run("load_part", store=str(store.path), step=2) == [whole("odd").numel() * 4] * 2


def test_each_block_of_a_tensor_is_looked_at_once_and_not_once_for_each_of_the_others(
    pair: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    pair.run("large", store=str(store.path), step=1, rows=4096, columns=1024, dim=1)  # 16 bands of 2 columns each
    looks = []
    real = Block.meet

    def counted(self: Block, other: Block) -> Block | None:
        looks.append(self)
        return real(self, other)

    monkeypatch.setattr(Block, "meet", counted)
    wanted = torch.arange(4096 * 1024, dtype=torch.int32).reshape(4096, 1024)

    assert torch.equal(store.load(1)["w"], wanted)
    assert len(set(looks)) == 32
    loaded = len(looks)
    store.export_safetensors(1, tmp_path / "out")
    exported = len(looks) - loaded
    with store.open_checkpoint(1) as checkpoint:
        assert torch.equal(checkpoint.slice("w")[300:301], wanted[300:301])
    sliced = len(looks) - loaded - exported
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("w"), wanted)
    assert loaded <= 2 * 32
    assert exported <= 2 * 32
    assert sliced <= 2 * 2


def test_a_block_is_read_in_another_shape_than_it_was_saved_in(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=2)
    wanted = whole("wide").numpy().tobytes()
    flat, deep = (len(wanted),), (16, 4, 48 * 4)

    with open_directory(store._context, store.info(2)) as directory:
        (leaf,) = [leaf for leaf in directory.manifest.leaves if leaf.name == "model.wide"]
        reader = RegionReader(directory, leaf.storage, leaf.name)
        for shape, block in ((flat, Block((10,), (300,))), (deep, Block((1, 2, 4), (3, 1, 40)))):
            out = bytearray(block.nbytes)
            reader.block(shape, block, memoryview(out))
            places = tuple(slice(at, at + n) for at, n in zip(block.offsets, block.sizes, strict=True))
            assert out == np.frombuffer(wanted, np.uint8).reshape(shape)[places].tobytes()


_STRIDED = """
import sys, warnings
import torch
from ckstore import Store
from ckstore.integrations import dcp


def peak_mib():
    with open("/proc/self/status") as file:
        return int(dict(line.split(":", 1) for line in file)["VmHWM"].split()[0]) // 1024


warnings.simplefilter("ignore")
store = Store.init(sys.argv[1], chunk_bytes=2**20)
dcp.save(store, {"w": torch.ones(1000)[::2]}, 1)
w = torch.arange(40 * 2**20, dtype=torch.int32).reshape(4, -1)[:, ::2]
before = peak_mib()
dcp.save(store, {"w": w}, 2)
print(peak_mib() - before)
"""


def test_a_shard_with_gaps_is_saved_without_a_copy_of_it(store: Store, warm: Path) -> None:
    python = str(warm / "python")
    done = subprocess.run([python, "-c", _STRIDED, f"{store.path}-2"], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 64  # it has 80 MiB, and threads have buffers
    with Store.open(f"{store.path}-2") as other:
        wanted = torch.arange(40 * 2**20, dtype=torch.int32).reshape(4, -1)[:, ::2]
        assert torch.equal(other.load(2)["w"], wanted)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_shards_of_any_strides_come_back(store: Store) -> None:
    cube = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    state = {"t": cube[0, 0].t(), "last": cube.permute(0, 2, 3, 1), "gaps": cube[:, ::2, 1:, ::3], "one": cube[1, 2, 3]}

    dcp.save(store, state, 1)

    loaded: Any = store.load(1)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_file_in_memory_is_a_value_as_torch_has_it(store: Store, tmp_path: Path) -> None:
    files = {"short": io.BytesIO(b"loss"), "long": io.BytesIO(b"loss" * 1000)}
    files["long"].seek(7)

    dcp.save(store, {"train": files, "w": torch.ones(2)}, step=1)
    store.export(1, tmp_path / "out", format="dcp")
    target: dict[str, Any] = {"train": {name: io.BytesIO() for name in files}, "w": torch.zeros(2)}
    exported: dict[str, Any] = {"train": {name: io.BytesIO() for name in files}, "w": torch.zeros(2)}
    torch_load(target, storage_reader=CkstoreReader(store))
    torch_load(exported, checkpoint_id=tmp_path / "out")

    for found in (target, exported, store.load(1)):
        for name, file in files.items():
            back = found["train"][name]
            assert (type(back), back.tell(), back.read()) == (io.BytesIO, 0, file.getvalue())


def test_a_plan_that_reads_a_plain_value_as_a_tensor_is_refused(store: Store) -> None:
    store.save({"lr": 0.5}, 1)
    reading = CkstoreReader(store, 1)
    reading.read_metadata()
    at, one = MetadataIndex("lr"), torch.Size([1])
    item = ReadItem(LoadItemType.TENSOR, at, torch.Size([0]), at, torch.Size([0]), one)

    with pytest.raises(BadInput, match="lr of main@1 is not a tensor"):
        reading.read_data(LoadPlan([item]), DefaultLoadPlanner())


@pytest.mark.skipif(
    not has_argument(DefaultSavePlanner, "enable_plan_caching"), reason="planners of torch 2.6 keep no plans"
)
def test_plan_caching_of_torch_saves_the_values_of_each_step(pair: Group, store: Store) -> None:
    ids, _ = pair.run("cached_then_changed", store=str(store.path))

    assert sorted(info.id for info in store.checkpoints()) == sorted(ids)
    states: list[Any] = [store.load(step) for step in (1, 2, 3)]
    assert [state["step"] for state in states] == [1, 2, 3]


@pytest.mark.parametrize("process", [False, True] if os.environ.get("CKSTORE_CRASH") == "full" else [False])
def test_async_saves_in_a_thread_and_in_a_process(pair: Group, store: Store, process: bool) -> None:
    pair.run("save_async", store=str(store.path), step=7, process=process)

    assert pair.run("load_shards", store=str(store.path), step=7) == [True, True]


def test_a_checkpoint_that_is_loaded_during_an_async_save_is_continued_by_the_next(pair: Group, store: Store) -> None:
    ids = [pair.run("save_given", store=str(store.path), step=step)[0] for step in (1, 2)]

    assert pair.run("load_meanwhile", store=str(store.path), loading=[0, 1]) == [[ids[1], ids[0]]] * 2
    check_store(store.path)


def test_a_save_meanwhile_does_not_hide_that_a_checkpoint_was_loaded(pair: Group, store: Store) -> None:
    ids = [pair.run("save_given", store=str(store.path), step=step)[0] for step in (1, 2)]

    answers = pair.run("load_meanwhile", store=str(store.path), loading=[0, 1], meanwhile=True)

    assert answers == [[ids[1], store.info(5).id]] * 2
    assert store.info(5).parent == ids[0]
    check_store(store.path)


def test_a_writer_that_is_sent_after_a_load_has_the_parent_of_its_call(pair: Group, store: Store) -> None:
    ids = [pair.run("save_given", store=str(store.path), step=step)[0] for step in (1, 2)]

    assert pair.run("send_meanwhile", store=str(store.path)) == [[ids[1], ids[1], True]] * 2
    check_store(store.path)


def test_an_async_save_continues_what_one_rank_has_loaded_for_all_before_the_call(pair: Group, store: Store) -> None:
    ids = [pair.run("save_given", store=str(store.path), step=step)[0] for step in (1, 2)]

    (parent, _), _ = pair.run("load_meanwhile", store=str(store.path), loading=[1])

    assert parent == ids[1]
    check_store(store.path)


def test_the_same_weights_again_write_nothing_and_cost_a_manifest(pair: Group, store: Store) -> None:
    pair.run("save_shards", store=str(store.path), step=1)
    (_, new_bytes), _ = pair.run("save_shards", store=str(store.path), step=2)

    assert new_bytes == 0
    assert store.gc().freed_bytes == 0


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_ranks_on_two_mounts_that_know_nothing_of_each_others_locks_make_one_checkpoint(
    pair: Group, tmp_path: Path
) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        places = [
            mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name, lacks="exchange")) / "store"
            for name in ("one", "two")
        ]
        Store.init(places[0]).close()
        each = [{"store": str(place), "step": 1} for place in places]
        ids = [answer[0] for answer in pair.call_each("save_shards", each)]
        assert pair.call_each("load_shards", each[::-1]) == [True, True]
        pair.run("let_go")
        with Store.open(tmp_path / "real" / "store", readonly=True) as store:
            assert ids == [store.info(1).id] * 2
            assert store.load(1)["lr"] == 0.5


def test_a_checkpoint_of_one_process_loads_on_ranks(pair: Group, store: Store) -> None:
    store.save({"model": {name: whole(name) for name in PLACED}, "lr": 0.5}, step=3)

    assert pair.run("load_shards", store=str(store.path), step=3) == [True, True]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_latest_valid_goes_back_past_what_turns_out_to_be_damaged_unless_that_leaves_parts_of_it(store: Store) -> None:
    for step in (1, 2, 3):
        more = {} if step == 1 else {"more": torch.full((64,), float(step))}
        dcp.save(store, {"w": torch.full((300,), float(step)), **more}, step)

    def damage(step: int) -> None:
        (blob,) = (directory_of(store, step) / "blobs").iterdir()
        flip(blob, blob.stat().st_size // 2, keep_time=True)  # only who reads it finds it

    damage(3)
    state = {"w": torch.zeros(300), "more": torch.zeros(64)}
    with pytest.raises(RankFailed, match="w of main@3 is damaged"):
        dcp.load(store, state, "latest-valid", strict=False)
    with pytest.warns(ckstore.CkstoreWarning, match="damaged: main@3"):
        assert dcp.load(store, state, "latest-valid").info.step == 2
    assert {*state["w"].tolist(), *state["more"].tolist()} == {2.0}

    damage(2)
    with (
        pytest.warns(ckstore.CkstoreWarning, match="damaged: main@3"),
        pytest.raises(BadInput, match="the state holds a part of main@2, which is damaged"),
    ):
        dcp.load(store, state, "latest-valid")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_latest_valid_goes_back_where_a_store_is_given_by_its_path_and_so_no_damage_is_marked(store: Store) -> None:
    for step in (1, 2, 3):
        dcp.save(store, {"w": torch.full((300,), float(step))}, step)
    for step in (3, 2):
        (blob,) = (directory_of(store, step) / "blobs").iterdir()
        flip(blob, blob.stat().st_size // 2, keep_time=True)  # only who reads it finds it
    state = {"w": torch.zeros(300)}

    with pytest.warns(ckstore.CkstoreWarning, match=r"restoring main@[21], since newer checkpoints are damaged"):
        assert dcp.load(store.path, state, "latest-valid").info.step == 1
    assert set(state["w"].tolist()) == {1.0}
    (blob,) = (directory_of(store, 1) / "blobs").iterdir()
    flip(blob, blob.stat().st_size // 2, keep_time=True)
    with (
        pytest.warns(ckstore.CkstoreWarning, match="since newer checkpoints are damaged"),
        pytest.raises(RankFailed, match="w of main@3 is damaged") as caught,
    ):
        dcp.load(store.path, state, "latest-valid")
    assert str(caught.value).count("an older checkpoint may be whole") == 1


def test_a_part_that_is_gone_is_an_error_with_the_name_of_the_tensor(pair: Group, store: Store, tmp_path: Path) -> None:
    pair.run("large", store=str(store.path), step=1, rows=600, columns=1024)
    folder = blobs_dir(store.path, "main", 1)
    next(iter(folder.iterdir())).unlink()

    with pytest.raises(DamagedBlob, match=r"main/1.* is missing; w needs it"):
        Store.open(store.path, readonly=True).export_safetensors("main@1", tmp_path / "out")
    for form in ("torch", "dcp"):
        with pytest.raises(DamagedBlob, match=r"main/1.* is missing; w needs it"):
            Store.open(store.path, readonly=True).export("main@1", tmp_path / "out", format=form)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == []
