"""A store keeps checkpoints of `torch.distributed.checkpoint` as torch's own file system does.

Each case is done twice, with torch's `FileSystemWriter` and `FileSystemReader` and with ckstore's. So this says in its
own words what torch's tests of its storage say (test/distributed/checkpoint of torch 2.13: test_file_system_checkpoint,
test_file_system_checkpoint_cpu, test_fsspec, test_save_load_api, test_compatibility, test_planner and
e2e/test_e2e_save_and_load), and it fails when another torch behaves in another way. What ckstore adds is tried in
tests/integrations/test_dcp.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys, load
from torch.distributed.checkpoint.state_dict_saver import save

from ckstore import NoSuchRef, StepExists, Store
from ckstore.integrations.dcp import CkstoreReader, CkstoreWriter
from tests.compat.torch_cases import STATES, Storage, emptied, is_equal, through, trained
from tests.support.gloo import Group

KINDS = ("torch", "ckstore")
CASES = Path(__file__).with_name("torch_cases.py")

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is", "ignore::FutureWarning", "ignore:Detected an existing checkpoint"
)


def storage(kind: str, tmp_path: Path) -> Storage:
    place = tmp_path / kind
    place.mkdir()
    if kind == "ckstore":
        Store.init(place).close()
    return Storage(kind, place)


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return storage(request.param, tmp_path)


@pytest.mark.parametrize("name", STATES)
def test_a_state_comes_back_into_one_that_holds_other_values(kept: Storage, name: str) -> None:
    state = STATES[name]()

    assert is_equal(through(kept, state, emptied(state)), state)


def test_a_trained_model_and_its_optimizer_go_on_as_if_they_had_not_stopped(kept: Storage) -> None:
    def state_of(pair: Any) -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(*pair)
        return {"model": model_state, "optim": optimizer_state}

    first, other = trained(2), trained(3)
    into = through(kept, state_of(first), state_of(other))
    set_state_dict(*other, model_state_dict=into["model"], optim_state_dict=into["optim"])
    for model, optimizer in (first, other):
        torch.manual_seed(0)
        model(torch.randint(0, 5, (4, 3))).square().mean().backward()
        optimizer.step()

    assert is_equal(state_of(other), state_of(first))


class Counted:
    """A `Stateful` that counts its calls."""

    def __init__(self, value: float) -> None:
        self.value = torch.full((3,), value)
        self.loads = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        self.loads += 1


class Watched(dict[str, Any]):
    """A state that knows which of its items were set."""

    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__(items)
        self.set: list[str] = []

    def __setitem__(self, name: str, value: Any) -> None:
        self.set.append(name)
        super().__setitem__(name, value)


def test_a_stateful_object_is_loaded_in_place_and_other_items_are_set(kept: Storage) -> None:
    mine = Counted(0.0)
    into = Watched({"own": mine, "plain": {"n": 0, "t": torch.zeros(2)}})

    through(kept, {"own": Counted(5.0), "plain": {"n": 4, "t": torch.ones(2)}}, into)

    assert into["own"] is mine
    assert (mine.loads, mine.value.tolist()) == (1, [5.0, 5.0, 5.0])
    assert (into["plain"]["n"], into["plain"]["t"].tolist()) == (4, [1.0, 1.0])
    assert "own" not in into.set


def test_a_part_is_loaded_alone(kept: Storage) -> None:
    state = {"model": {"w": torch.ones(4), "b": torch.ones(2)}, "optim": {"step": torch.tensor(5)}, "epoch": 3}
    into = through(kept, state, {"model": {"w": torch.zeros(4)}})
    assert is_equal(into, {"model": {"w": torch.ones(4)}})

    for keys, wanted in (("model", {"model": state["model"]}), ("optim.step", {"optim": state["optim"]})):
        assert is_equal(_load_state_dict_from_keys(keys, storage_reader=kept.reader()), wanted)


def test_what_is_missing_is_an_error_that_names_it_unless_the_planner_allows_it(kept: Storage) -> None:
    save({"there": torch.ones(2)}, storage_writer=kept.writer())
    into = {"there": torch.zeros(2), "lacking": torch.zeros(3)}
    with pytest.raises((CheckpointException, RuntimeError), match="lacking"):
        load(dict(into), storage_reader=kept.reader())

    load(into, storage_reader=kept.reader(), planner=DefaultLoadPlanner(allow_partial_load=True))

    assert is_equal(into, {"there": torch.ones(2), "lacking": torch.zeros(3)})


def test_another_shape_is_an_error_that_names_it(kept: Storage) -> None:
    save({"w": torch.ones(4, 3)}, storage_writer=kept.writer())

    with pytest.raises((CheckpointException, ValueError), match=r"w|4, 3"):
        load({"w": torch.zeros(3, 4)}, storage_reader=kept.reader())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_another_dtype_is_cast_as_copy_casts(kept: Storage, dtype: torch.dtype) -> None:
    values = torch.tensor([1.5, -2.25, 1e-3, 70000.0])

    into = through(kept, {"w": values}, {"w": torch.zeros(4, dtype=dtype)})

    assert is_equal(into["w"], torch.zeros(4, dtype=dtype).copy_(values))


def test_a_target_of_another_layout_in_memory_is_filled(kept: Storage) -> None:
    into = {"w": torch.zeros(4, 3).t(), "part": torch.zeros(6)[::2]}
    through(kept, {"w": torch.arange(12.0).reshape(3, 4), "part": torch.ones(3)}, into)

    assert into["w"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert into["part"].tolist() == [1.0, 1.0, 1.0]


def test_the_same_place_is_written_again_and_the_last_one_counts(kept: Storage) -> None:
    save({"w": torch.zeros(2), "old": torch.zeros(5)}, storage_writer=kept.writer())
    save({"w": torch.ones(2)}, storage_writer=kept.writer(again=True))
    into = {"w": torch.zeros(2)}
    load(into, storage_reader=kept.reader())

    assert into["w"].tolist() == [1.0, 1.0]
    assert list(kept.reader().read_metadata().state_dict_metadata) == ["w"]


def test_a_store_replaces_only_where_that_was_asked_for(tmp_path: Path) -> None:
    kept = storage("ckstore", tmp_path)
    save({"w": torch.zeros(2)}, storage_writer=kept.writer())

    with pytest.raises((CheckpointException, StepExists)):
        save({"w": torch.ones(2)}, storage_writer=CkstoreWriter(kept.place, kept.step))


def test_what_is_not_there_is_an_error(kept: Storage) -> None:
    kept.step = 9
    with pytest.raises((CheckpointException, NoSuchRef, FileNotFoundError)):
        load({"w": torch.zeros(2)}, storage_reader=kept.reader())


def test_the_metadata_says_what_there_is_of_which_shape_and_dtype(tmp_path: Path) -> None:
    described = []
    for kind in KINDS:
        kept = storage(kind, tmp_path)
        save({"a": {"w": torch.ones(4, 3, dtype=torch.bfloat16)}, "n": 5}, storage_writer=kept.writer())
        metadata = kept.reader().read_metadata()
        tensor: Any = metadata.state_dict_metadata["a.w"]
        described.append(
            (
                sorted(metadata.state_dict_metadata),
                (tensor.size, tensor.properties.dtype, tensor.chunks),
                metadata.planner_data,
                type(metadata.state_dict_metadata["n"]),
            )
        )

    assert described[0] == described[1]


def test_the_metadata_has_the_ids_of_the_checkpoint_the_save_and_the_load(kept: Storage) -> None:
    writer: Any = kept.writer()
    save({"w": torch.ones(2)}, storage_writer=writer)
    reader: Any = kept.reader()
    ids = reader.read_metadata().storage_meta
    saved = writer.save_id if kept.kind == "torch" else writer.info.id

    assert ids is not None
    assert str(ids.checkpoint_id) == str(writer.checkpoint_id)
    assert ids.save_id == saved
    assert ids.load_id == reader.load_id
    before = reader.load_id
    reader.reset()
    assert reader.load_id != before
    assert reader.read_metadata().storage_meta.load_id == reader.load_id
    fresh: Any = kept.reader().read_metadata().storage_meta
    assert fresh.save_id == saved


def test_a_store_is_found_by_no_checkpoint_id_alone(tmp_path: Path) -> None:
    kept = storage("ckstore", tmp_path)
    save({"w": torch.ones(2)}, storage_writer=kept.writer())

    assert not CkstoreReader.validate_checkpoint_id(str(kept.place))
    into = {"w": torch.zeros(2)}
    load(into, checkpoint_id=str(kept.step), storage_reader=CkstoreReader(kept.place))
    assert into["w"].tolist() == [1.0, 1.0]


# ---------------------------------------------------------------------- on two ranks


@pytest.fixture(scope="module")
def pair(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(2, tmp_path_factory.mktemp("pair"), CASES, python=warm / "python") as group:
        yield group


@pytest.mark.crossed
@pytest.mark.parametrize("case", ["reshard", "reshard_uneven", "save_in_other_orders"])
def test_ranks_load_what_ranks_saved_cut_in_another_way(pair: Group, kept: Storage, case: str) -> None:
    assert pair.run(case, kind=kept.kind, place=str(kept.place)) == [[], []]
