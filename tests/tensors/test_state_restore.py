"""Restoring: selections, memory that is given, devices, and manifests that another program wrote."""

from __future__ import annotations

import gc
import io
import json
import mmap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafKind, LeafRecord
from ckstore.tensors.memory_layout import StorageMemory
from ckstore.tensors.state_restore import allocate, build, make_leaf, needed_storages, sink_of, wrap
from tests.support.captures import Saved
from tests.support.states import assert_same, states, tensor_bits

STATE = {
    "model": OrderedDict(w=torch.ones(2), b=torch.zeros(3)),
    "optimizer": [{"m": torch.ones(4), "lr": 0.1}, {}],
    "pair": (1, torch.ones(5)),
    "step": 7,
}


def never(storage: int) -> StorageMemory:
    raise AssertionError(f"storage {storage} is not needed")


def load(*names: str) -> Any:
    return Saved(STATE).load(keep=lambda name: name in names)


def test_a_selection_leaves_out_what_was_not_asked_for() -> None:
    assert_same({"model": OrderedDict(b=torch.zeros(3))}, load("model.b"))


def test_plain_values_are_selected_by_name_too() -> None:
    assert load("step", "optimizer[0].lr") == {"step": 7, "optimizer": [{"lr": 0.1}, None]}


def test_items_that_were_not_asked_for_keep_their_place() -> None:
    assert_same({"pair": (None, torch.ones(5))}, load("pair[1]"))


def test_a_selection_of_nothing_is_empty() -> None:
    assert load() == {}
    assert Saved([1, 2]).load(keep=lambda name: False) is None
    assert Saved(torch.ones(2)).load(keep=lambda name: False) is None


def test_a_selected_module_keeps_its_metadata() -> None:
    module = torch.nn.Linear(2, 2)

    back = Saved(module).load(keep=lambda name: name == "bias")

    assert list(back) == ["bias"]
    assert vars(back) == vars(module.state_dict())


@pytest.mark.property
@given(state=states())
def test_a_selection_of_everything_gives_everything(state: Any) -> None:
    assert_same(state, Saved(state).load(keep=lambda name: True))


def test_an_empty_container_is_selected_by_its_name() -> None:
    saved = Saved({"groups": [{"params": [], "betas": (), "lr": 0.1}, {}], "other": {}, "model": torch.ones(1)})

    assert saved.load(keep=lambda name: name.startswith("groups")) == {
        "groups": [{"params": [], "betas": (), "lr": 0.1}, {}]
    }
    assert saved.load(keep=lambda name: name == "groups[0].params") == {"groups": [{"params": []}, None]}


@pytest.mark.property
@given(state=states(), data=st.data())
def test_a_selection_needs_only_the_storages_of_its_leaves(state: Any, data: st.DataObject) -> None:
    saved = Saved(state)
    names = [leaf.name for leaf in saved.manifest.leaves]
    chosen = data.draw(st.sets(st.sampled_from(names))) if names else set()

    saved.load(keep=chosen.__contains__)

    storages = {leaf.storage for leaf in saved.manifest.leaves if leaf.name in chosen and 0 not in leaf.shape}
    assert saved.asked == [i for i in saved.asked if i in storages]
    assert set(saved.asked) == storages


def test_a_device_gets_each_storage_once_and_ties_hold_there() -> None:
    memory = torch.rand(10)
    saved = Saved({"a": memory, "b": memory[2:4], "n": np.ones(2)})

    back = saved.load(device="meta")

    assert back["a"].device.type == "meta"
    assert back["b"].storage_offset() == 2
    assert back["a"].untyped_storage()._cdata == back["b"].untyped_storage()._cdata
    assert isinstance(back["n"], np.ndarray)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_cpu_may_be_named_in_two_ways(device: object) -> None:
    saved = Saved({"a": torch.ones(3)})
    memories: dict[int, StorageMemory] = {0: saved.memory(0)}

    leaves = saved.manifest.leaves
    back: Any = build(saved.manifest.state, leaves, memories.__getitem__, sink=sink_of(device, leaves))

    back["a"][0] = 5
    assert memories[0].view[:4] == tensor_bits(torch.tensor([5.0]))


DEVICES: list[tuple[Any, str]] = [
    (None, "cpu"),
    ({}, "cpu"),
    ({"cuda:0": "meta"}, "cpu"),
    ({"cpu": "meta"}, "meta"),
    (torch.device("meta"), "meta"),
    (lambda storage, location: storage if location == "cpu" else None, "cpu"),
    (lambda storage, location: None, "cpu"),
    (lambda storage, location: storage.clone(), "cpu"),
    (lambda storage, location: torch.UntypedStorage(storage.nbytes(), device="meta"), "meta"),  # type: ignore[no-untyped-call]
]


@pytest.mark.parametrize("device, where", DEVICES)
def test_a_device_may_be_all_that_map_location_may_be(device: Any, where: str) -> None:
    values = torch.rand(8)
    file = io.BytesIO()
    torch.save({"a": values, "b": values[3:]}, file)
    file.seek(0)

    theirs = torch.load(file, map_location=device, weights_only=True)
    ours = Saved({"a": values, "b": values[3:]}).load(device=device)

    assert ours["a"].device.type == theirs["a"].device.type == where
    assert where == "meta" or torch.equal(ours["b"], values[3:])
    if where == "cpu":
        ours["a"][3] = 7
        assert ours["b"][0] == 7


NO_DEVICES: list[Any] = ["nowhere", 1.5, ["cpu"], {"cpu": "nowhere"}, lambda *_: 3, lambda s, _: s[:1]]


@pytest.mark.parametrize("device", NO_DEVICES)
def test_what_is_no_device_is_an_error_of_ckstore(device: Any) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        Saved({"a": torch.ones(2)}).load(device=device)


KINDS: list[LeafKind] = ["torch", "numpy", "bytes", "str"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nbytes", [0, 1, 1000])
def test_memory_of_any_kind_and_size_can_be_filled(kind: LeafKind, nbytes: int) -> None:
    memory = allocate(kind, nbytes)

    memory.view[:] = b"a" * nbytes

    assert memory.view.nbytes == nbytes
    assert bytes(memory.view) == b"a" * nbytes


def test_memory_of_tensors_is_aligned() -> None:
    assert all(allocate("torch", nbytes).owner.data_ptr() % 64 == 0 for nbytes in (1, 100, 10_000))  # type: ignore[attr-defined]


LEAVES: list[tuple[LeafRecord, bytes, object]] = [
    (LeafRecord("a", "torch", "int16", (2,), 0), b"\1\0\2\0", [1, 2]),
    (LeafRecord("a", "numpy", ">i2", (2,), 0), b"\0\1\0\2", [1, 2]),
    (LeafRecord("a", "bytes", "", (), 0), b"\1\0", b"\1\0"),
    (LeafRecord("a", "str", "", (), 0), b"\xc3\xa4\xed\xa0\x80", "ä\ud800"),
]


@pytest.mark.parametrize("leaf, data, value", LEAVES)
def test_leaves_are_made_of_wrapped_buffers(leaf: LeafRecord, data: bytes, value: object) -> None:
    made: Any = make_leaf(leaf, wrap(leaf.kind, memoryview(bytearray(data))))

    assert (made.tolist() if leaf.kind in ("torch", "numpy") else made) == value


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_leaf_over_a_mapping_shares_it_and_holds_it_open(kind: LeafKind, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    leaf = LeafRecord("a", kind, "uint8" if kind == "torch" else "|u1", (8192,), 0)
    made: Any = make_leaf(leaf, wrap(kind, memoryview(mapped)))
    gc.collect()

    made[5] = 7
    with pytest.raises(BufferError):
        mapped.close()

    assert mapped[5] == 7
    del made
    gc.collect()
    mapped.close()
    assert path.read_bytes() == bytes(8192)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_buffer_can_be_wrapped(kind: LeafKind) -> None:
    assert wrap(kind, memoryview(b"")).view.nbytes == 0


def test_a_leaf_without_elements_needs_no_storage() -> None:
    leaf = LeafRecord("a", "torch", "float32", (0, 3), 5)

    assert needed_storages(["leaf", 0], [leaf]) == []
    made: Any = build(["leaf", 0], [leaf], never)
    assert made.shape == (0, 3)


def test_a_leaf_of_one_kind_may_lie_in_memory_of_another() -> None:
    data = np.arange(4, dtype=np.int32).tobytes()
    tensor = LeafRecord("t", "torch", "int32", (4,), 0)
    array = LeafRecord("n", "numpy", "<i4", (4,), 0, 12, (-1,))
    memories = [allocate("torch", 16), allocate("bytes", 16)]
    for memory in memories:
        memory.view[:] = data

    found: list[Any] = [make_leaf(array, memories[0]), make_leaf(tensor, memories[1])]

    assert [value.tolist() for value in found] == [[3, 2, 1, 0], [0, 1, 2, 3]]


def test_a_leaf_that_is_not_aligned_is_refused() -> None:
    leaf = LeafRecord("a.b", "torch", "float32", (1,), 0, 2)

    with pytest.raises(BadInput, match=r"a\.b: begins at byte 2, where float32 cannot begin"):
        make_leaf(leaf, allocate("torch", 8))


def test_a_dtype_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_dtypes(), "float4_e2m1fn_x2", raising=False)

    with pytest.raises(BadInput, match=r"a: dtype float4_e2m1fn_x2 is not known to torch .*newer torch"):
        make_leaf(LeafRecord("a", "torch", "float4_e2m1fn_x2", (1,), 0), allocate("torch", 1))


def _dtypes() -> dict[str, torch.dtype]:
    from ckstore.tensors import torch_leaves

    return torch_leaves.DTYPES


@pytest.mark.parametrize(
    "node, value",
    [
        (["numpy", "<f4", "AACAPw=="], np.float32(1)),
        (["odict", [["a", 1]], None], OrderedDict(a=1)),
        (["dict", [[["int", str(2**70)], ["tuple", []]]]], {2**70: ()}),
    ],
)
def test_nodes_stand_for_what_the_format_says(node: Any, value: object) -> None:
    made = build(json.loads(json.dumps(node)), [], never)

    assert made == value
    assert type(made) is type(value)


def test_restored_memory_is_kept_by_its_leaves() -> None:
    make: Callable[[], Any] = Saved({"a": torch.full((1000,), 3), "n": np.full(1000, 3)}).load
    back = make()
    gc.collect()

    for _ in range(10):
        torch.zeros(1000), np.zeros(1000)

    assert back["a"].sum() == 3000
    assert back["n"].sum() == 3000
