"""What is stored for a state: which bytes, under which names, and that they are not copied."""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import CannotStore, StateChanged
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.tensors import torch_sources
from ckstore.tensors.state_capture import _SCALARS, capture
from tests.support.captures import Saved, bytes_of
from tests.support.states import assert_same, tensor_bits


def lone(tensor: torch.Tensor) -> tuple[LeafRecord, bytes]:
    captured = capture(tensor)
    return captured.leaves[0], bytes_of(captured.sources[0])


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.arange(10.0)
    source = capture({"a": tensor[2:8]}).sources[0]
    view = source.view(0, source.nbytes)
    assert view is not None

    tensor[2] = 99

    assert view == tensor_bits(tensor[2:8])


@pytest.mark.property
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128]),
)
def test_a_slice_with_gaps_is_not_copied_and_any_bytes_of_it_are_those_of_a_row_major_copy(
    sizes: list[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    shape = [2 * size for size in sizes]
    values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    gaps = tuple(slice(data.draw(st.integers(0, 1)), None, 2) for _ in shape)
    tensor = values[gaps].permute(data.draw(st.permutations(range(len(shape)))))
    source = capture({"a": tensor}).sources[0]
    values *= 0  # what is read is what the tensor holds then
    values += torch.arange(values.numel()).reshape(shape).flip(0).to(dtype)

    wanted = tensor_bits(tensor)
    assert source.nbytes == len(wanted)
    stop = data.draw(st.integers(0, source.nbytes))
    start = data.draw(st.integers(0, stop))
    out = bytearray(stop - start)
    source.read_into(start, stop, memoryview(out))
    assert bytes(out) == wanted[start:stop]
    assert source.changed()


def test_a_lone_slice_stores_its_elements_and_no_more() -> None:
    leaf, data = lone(torch.arange(1000, dtype=torch.int64)[500:503])

    assert leaf == LeafRecord("", "torch", "int64", (3,), 0)
    assert data == np.arange(500, 503).tobytes()


def test_a_lone_transposed_tensor_is_stored_as_it_lies() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()

    leaf, data = lone(tensor)

    assert (leaf.shape, leaf.strides) == ((3, 2), (1, 3))
    assert data == tensor_bits(torch.arange(6.0))
    assert Saved(tensor).load().stride() == (1, 3)


def test_channels_last_comes_back_as_channels_last() -> None:
    tensor = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)

    back = Saved(tensor).load()

    assert back.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back, tensor)


def test_an_expanded_tensor_stores_its_memory_once() -> None:
    tensor = torch.tensor([1.0, 2.0]).expand(1000, 2)

    leaf, data = lone(tensor)

    assert leaf.strides == (0, 1)
    assert len(data) == 8
    assert_same(tensor, Saved(tensor).load())


def test_a_column_of_a_matrix_stores_the_column() -> None:
    tensor = torch.arange(100.0).reshape(10, 10)[:, 3]

    leaf, data = lone(tensor)

    assert leaf.strides is None
    assert data == tensor_bits(tensor)


def test_a_tensor_at_two_names_is_stored_once_and_comes_back_tied() -> None:
    tensor = torch.rand(5)

    saved = Saved({"embedding": tensor, "head": tensor})
    back = saved.load()

    assert [len(data) for data in saved.data] == [20]
    assert [leaf.storage for leaf in saved.captured.leaves] == [0, 0]
    back["embedding"][0] = 7
    assert back["head"][0] == 7


def test_a_tied_slice_has_the_same_bytes_as_a_lone_one() -> None:
    tensor = torch.rand(20)[3:9]

    tied = capture([tensor, tensor])

    assert bytes_of(tied.sources[0]) == bytes_of(capture(tensor).sources[0])
    assert tied.sources[0].view(0, 24) is not None


def test_views_far_apart_share_a_storage_without_what_lies_between() -> None:
    memory = torch.arange(1_000_000, dtype=torch.float64)
    state = {"a": memory[:4], "b": memory[-4:], "c": memory[2:6]}

    saved = Saved(state)

    assert len(saved.data[0]) == 64 + 32
    assert saved.data[0][48:64] == bytes(16)
    assert_same(state, saved.load())


def test_a_gap_is_read_and_not_viewed() -> None:
    memory = torch.ones(100, dtype=torch.uint8)
    source = capture([memory[:10], memory[90:]]).sources[0]

    assert [source.view(0, 10), source.view(64, 74)] == [memoryview(bytes([1] * 10))] * 2
    assert source.view(5, 70) is None
    assert source.view(20, 30) is None
    assert bytes_of(source) == bytes([1] * 10 + [0] * 54 + [1] * 10)


def test_views_of_other_dtypes_stay_tied() -> None:
    memory = torch.rand(8)
    state = {"a": memory, "bits": memory.view(torch.int32)[1:], "bytes": memory.view(torch.uint8)[5:7]}

    back = Saved(state).load()

    assert_same(state, back)
    back["bits"][0] = 0
    assert back["a"][1] == 0


def test_two_tensors_over_one_array_are_tied_however_long_they_are() -> None:
    array = np.arange(8)
    state = [torch.from_numpy(array[:2]), torch.from_numpy(array)]

    assert_same(state, Saved(state).load())


def test_tensors_without_elements_are_not_tied() -> None:
    empty = torch.empty(0, 3)
    state = {"a": empty, "b": empty, "c": torch.empty(2, 0, dtype=torch.complex64)}

    saved = Saved(state)

    assert saved.data == [b"", b"", b""]
    assert_same(state, saved.load())


def test_a_modified_tensor_is_seen_through_every_view_of_it() -> None:
    memory = torch.zeros(10)
    names = {"whole": memory, "slice": memory[3:5], "other": torch.zeros(3), "gap": torch.zeros(4)[::3]}
    captured = capture(names)

    memory[0] = 1
    changed = {source.name: source.changed() for source in captured.sources}

    assert changed == {"whole": True, "other": False, "gap": False}


def test_an_original_modified_after_its_copy_was_taken_is_seen() -> None:
    tensor = torch.zeros(10)[::3]
    conjugate = torch.zeros(2, dtype=torch.complex64).conj()
    captured = capture([tensor, conjugate])

    tensor.add_(1)
    conjugate.add_(1)

    assert [source.changed() for source in captured.sources] == [True, True]


def test_a_parameter_modified_by_an_optimizer_is_seen() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    captured = capture(module)

    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    assert all(source.changed() for source in captured.sources)


def test_inference_tensors_are_stored_though_nothing_counts_their_changes() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        captured = capture(tensor)
        tensor.add_(1)

    assert not captured.sources[0].changed()
    assert_same(tensor, Saved(tensor).load())


def test_a_source_keeps_the_memory_alive() -> None:
    source = capture(torch.full((1000,), 7, dtype=torch.uint8)).sources[0]

    torch.zeros(1000, dtype=torch.uint8)  # would take the place

    assert bytes_of(source) == bytes([7]) * 1000


def test_parameters_and_buffers_of_a_module_come_back_as_tensors() -> None:
    module = torch.nn.BatchNorm1d(3)

    back = Saved(module).load()

    assert_same(module.state_dict(), back)
    assert type(back) is OrderedDict
    assert vars(back) == vars(module.state_dict())


def test_a_conjugate_and_a_negated_view_are_stored_as_what_they_show() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    state = {"conjugate": tensor.conj(), "negated": tensor.conj().imag, "half": tensor.to(torch.complex64)}

    back = Saved(state).load()

    assert back["conjugate"].tolist() == [1 - 2j, 3 + 4j]
    assert back["negated"].tolist() == [-2, 4]


@pytest.mark.skipif(not hasattr(torch, "bcomplex32"), reason="torch before 2.15 has no bcomplex32")
def test_a_conjugate_view_of_a_dtype_without_a_kernel_is_stored_as_what_it_shows() -> None:
    dtype: torch.dtype = getattr(torch, "bcomplex32")  # noqa: B009 - mypy does not know it
    tensor = torch.tensor([[1, 2], [3, -4]], dtype=torch.bfloat16).view(dtype).squeeze(-1)

    back = Saved(tensor.conj()).load()

    assert torch.view_as_real(back).tolist() == [[1, -2], [3, 4]]


def test_a_mapped_array_is_stored_like_any_other(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "array", np.float32, "w+", shape=(2, 3))
    mapped[:] = np.arange(6).reshape(2, 3)

    back = Saved(mapped).load()
    mapped._mmap.close()  # type: ignore[attr-defined]

    assert type(back) is np.ndarray
    assert back.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_array_in_fortran_order_is_not_copied() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3))
    captured = capture(array)

    array[0, 0] = 77

    assert captured.leaves[0].strides == (1, 2)
    assert np.frombuffer(bytes_of(captured.sources[0]), np.int64)[0] == 77


def test_an_array_that_cannot_be_written_is_stored() -> None:
    array = np.frombuffer(b"abcd", np.uint8)

    assert_same(array, Saved(array).load())


def test_tensors_over_a_mapped_file_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(64)))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    state = {"a": torch.frombuffer(mapped, dtype=torch.uint8, offset=3, count=8)}

    assert Saved(state).load()["a"].tolist() == list(range(3, 11))


@pytest.mark.parametrize("nbytes", [0, 256, 257])
def test_only_long_bytes_are_leaves(nbytes: int) -> None:
    captured = capture(bytes(nbytes))

    assert len(captured.leaves) == (nbytes > 256)


@pytest.mark.parametrize("length", [0, 4096, 4097])
def test_only_long_strings_are_leaves(length: int) -> None:
    captured = capture("ä" * length)

    assert len(captured.leaves) == (length > 4096)


def test_surrogates_that_json_would_join_stay_two() -> None:
    text = "\ud83d" + "\ude00"

    assert Saved({"text": text}).load() == {"text": text}


def test_names_are_paths() -> None:
    leaf = torch.zeros(1)
    state = {"model": {"a.b": [leaf.clone(), {3: leaf.clone()}]}, "": (leaf.clone(),), -1: leaf.clone()}

    names = [record.name for record in capture(state).leaves]

    assert names == [r"model.a\.b[0]", r"model.a\.b[1][3]", r"\0[0]", "[-1]"]


def test_a_value_may_be_a_hundred_containers_deep() -> None:
    state: Any = 1
    for _ in range(100):
        state = [state]

    assert Saved(state).load() == state

    with pytest.raises(CannotStore, match="nested deeper than 100"):
        capture([state])


def test_a_container_may_be_in_a_state_twice() -> None:
    shared = {"a": torch.zeros(2)}

    assert_same([shared, shared], Saved([shared, shared]).load())


def test_an_object_in_a_state_is_stored_as_its_state() -> None:
    class Loader:
        def state_dict(self) -> dict[str, Any]:
            return {"position": 3, "inner": torch.nn.Linear(1, 1)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    back = Saved({"loader": Loader()}).load()

    assert back["loader"]["position"] == 3
    assert list(back["loader"]["inner"]) == ["weight", "bias"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_may_be_captured_under_another_default_device() -> None:
    sparse = {"coo": torch.eye(2).to_sparse(), "csr": torch.eye(2).to_sparse_csr()}

    with torch.device("meta"):
        saved = Saved({"a": torch.zeros(2, device="cpu"), **sparse})
        back = saved.load()

    assert {one.device.type for one in back.values()} == {"cpu"}
    assert all(torch.equal(back[name].to_dense(), torch.eye(2)) for name in sparse)


def test_memory_that_is_freed_after_the_capture_fails_the_save_and_not_the_process() -> None:
    tensor = torch.arange(1000, dtype=torch.int32)
    captured = capture({"layer": {"weight": tensor}})

    tensor.untyped_storage().resize_(100)

    with pytest.raises(StateChanged, match=r"layer\.weight lost its memory"):
        captured.sources[0].view(0, 4000)
    with pytest.raises(StateChanged, match=r"layer\.weight lost its memory"):
        captured.sources[0].read_into(0, 4000, memoryview(bytearray(4000)))


def test_a_slice_with_gaps_whose_memory_is_freed_fails_the_save() -> None:
    tensor = torch.arange(200_000, dtype=torch.int32)[1::2]
    captured = capture({"layer": {"weight": tensor}})
    wanted = tensor_bits(tensor.clone())  # NumPy keeps memory that it looks at from being resized
    out = memoryview(bytearray(len(wanted)))

    tensor.untyped_storage().resize_(1_000_000)  # moved, and all of it there

    captured.sources[0].read_into(0, len(out), out)
    assert out == wanted

    tensor.untyped_storage().resize_(0)

    with pytest.raises(StateChanged, match=r"layer\.weight lost its memory"):
        captured.sources[0].read_into(0, len(out), out)


@pytest.mark.parametrize("elements", [3, 1000])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_parameter_that_gets_other_memory_in_the_walk_is_saved_as_it_was(elements: int, is_transposed: bool) -> None:
    weight = torch.arange(100.0).reshape(10, 10)[:, :7]
    parameter = torch.nn.Parameter(weight.T if is_transposed else weight.contiguous())
    wanted = parameter.detach().clone()

    class Swaps:
        def state_dict(self) -> dict[str, int]:
            parameter.data = torch.zeros(elements)
            return {"n": 1}

        def load_state_dict(self, state: object) -> None: ...

    saved = Saved({"weight": parameter, "average": Swaps()})

    assert torch.equal(saved.load()["weight"], wanted)


@pytest.mark.parametrize("kind", [deque, list, set])
def test_a_container_to_which_something_is_added_in_the_walk_is_saved_as_it_was(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    values = kind([1, 2, 3])
    add = values.add if kind is set else values.append

    def adding(value: int) -> int:
        add(len(values) + 1)
        assert len(values) < 100
        return value

    if kind is set:
        monkeypatch.setattr("ckstore.model.manifest.python_values.encode_key", adding)
    else:
        monkeypatch.setitem(_SCALARS, int, adding)

    assert Saved({"seen": values}).load() == {"seen": kind([1, 2, 3])}


def test_threads_that_look_at_a_storage_for_the_first_time_all_see_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = capture({"weight": torch.arange(1000, dtype=torch.int32)}).sources[0]
    seen = []
    memory_at = torch_sources.memory_at

    def meanwhile(address: int, nbytes: int) -> memoryview:
        monkeypatch.setattr(torch_sources, "memory_at", memory_at)
        seen.append(source.view(0, 4000))  # as another thread, at the worst moment
        return memory_at(address, nbytes)

    monkeypatch.setattr(torch_sources, "memory_at", meanwhile)

    wanted = memoryview(torch.arange(1000, dtype=torch.int32).numpy().tobytes())
    assert source.view(0, 4000) == wanted
    assert seen == [wanted]


@pytest.mark.parametrize("elements", [0, 10, 100_000])
def test_memory_that_is_freed_or_moved_between_two_chunks_fails_the_save(elements: int) -> None:
    tensor = torch.arange(1000, dtype=torch.int32)
    captured = capture({"layer": {"weight": tensor}})
    captured.sources[0].view(0, 100)

    tensor.untyped_storage().resize_(4 * elements)

    with pytest.raises(StateChanged, match=r"layer\.weight lost its memory"):
        captured.sources[0].view(100, 4000)


@pytest.mark.parametrize("nbytes", [1, 64 * 2**10, 64 * 2**10 + 1])
def test_bytes_are_copied_with_and_without_the_interpreter(nbytes: int) -> None:
    tensor = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    out = bytearray(nbytes)

    capture({"x": tensor}).sources[0].read_into(0, nbytes, memoryview(out))

    assert out == tensor.numpy().tobytes()
