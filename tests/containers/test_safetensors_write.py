"""Headers, shards and index, with safetensors itself as the oracle."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import _SIZE, save

from ckstore.containers import safetensors_write
from ckstore.containers.safetensors_write import (
    TensorToWrite,
    can_be_name,
    cut_shards,
    dtype_and_shape,
    lay_out,
    render_index,
    shard_name,
)
from ckstore.errors import BadInput
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from tests.support.requirements import NEW_SAFETENSORS
from tests.support.states import TORCH_DTYPES

FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # torch has it since 2.8
NOT_HELD = {"complex32", "bcomplex32", "complex128"}
# Without those that the installed version of the library does not know: 0.8 knows more than 0.5.
HELD = [dtype for dtype in TORCH_DTYPES if str(dtype).removeprefix("torch.") not in NOT_HELD and dtype in _SIZE]
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text('a."\\\n', max_size=3)


@st.composite
def contiguous_tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(HELD))
    least = 1 if dtype is FLOAT4 else 0
    shape = draw(st.lists(st.integers(0, 3), min_size=least, max_size=3))
    count = int(torch.Size(shape).numel())
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    flat = torch.tensor(list(data), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def written(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    to_write = []
    for name, tensor in tensors.items():
        held = dtype_and_shape("torch", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        assert held is not None
        to_write.append(TensorToWrite(name, *held, tensor.nbytes))
    layout = lay_out(to_write, metadata)
    out = bytearray(layout.nbytes)
    out[: len(layout.head)] = layout.head
    for start, tensor in zip(layout.starts, tensors.values(), strict=True):
        out[start : start + tensor.nbytes] = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
    return bytes(out)


@NEW_SAFETENSORS
@pytest.mark.property
@given(st.dictionaries(names, contiguous_tensors(), max_size=6), st.text('pt"\n\x1f\x7fé', max_size=4))
def test_a_file_is_to_the_byte_what_the_library_writes(tensors: dict[str, torch.Tensor], value: str) -> None:
    theirs = save(tensors, {"format": value})

    if tensors:
        assert written(tensors, {"format": value}) == theirs
    else:  # an empty map is written without its metadata by some versions
        assert json.loads(written(tensors, {"format": value})[8:]) == {"__metadata__": {"format": value}}


def test_several_metadata_are_those_of_the_library_in_our_order() -> None:
    metadata = {"format": "pt", "a": "b", "lm_head.weight": "wte.weight"}
    ours, theirs = written({"w": torch.ones(3)}, metadata), save({"w": torch.ones(3)}, metadata)

    length = int.from_bytes(ours[:8], "little")
    assert list(json.loads(ours[8 : 8 + length])["__metadata__"]) == list(metadata)
    assert json.loads(ours[8 : 8 + length]) == json.loads(theirs[8 : 8 + length])
    assert (len(ours), ours[length:]) == (len(theirs), theirs[length:])


@NEW_SAFETENSORS
@pytest.mark.parametrize("dtype", [name for name in TORCH_ITEMSIZE if hasattr(torch, name)])
def test_every_dtype_of_the_format_is_held_or_the_library_refuses_it_too(dtype: str) -> None:
    tensor = torch.zeros(16, dtype=torch.uint8).view(getattr(torch, dtype))

    if dtype_and_shape("torch", dtype, tuple(tensor.shape)) is None:
        with pytest.raises(KeyError):
            save({"w": tensor})
    elif tensor.dtype in _SIZE:
        assert written({"w": tensor}, {"format": "pt"}) == save({"w": tensor}, {"format": "pt"})


@pytest.mark.parametrize("dtype", [">f4", "<c16", "<M8[ns]", "|S3", "<U4", "|S1"])
def test_arrays_that_safetensors_lacks_are_not_held(dtype: str) -> None:
    assert dtype_and_shape("numpy", dtype, (2,)) is None


def test_half_a_byte_is_not_held() -> None:
    assert dtype_and_shape("torch", "float4_e2m1fn_x2", ()) is None
    assert dtype_and_shape("torch", "float4_e2m1fn_x2", (2, 3)) == ("F4", (2, 6))


def test_names_that_a_header_cannot_have_are_known() -> None:
    assert can_be_name("")
    assert can_be_name("a.b[0]\x00é")
    assert not can_be_name("__metadata__")
    assert not can_be_name("\ud800")


def test_a_header_that_the_library_would_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_write, "MAX_HEADER_BYTES", 100)

    with pytest.raises(BadInput, match="safetensors reads 100"):
        lay_out([TensorToWrite("a" * 50, "U8", (1,), 1)], {"format": "pt"})


@pytest.mark.property
@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 10))
def test_every_tensor_is_in_one_shard_and_no_shard_is_too_large(sizes: list[int], most_bytes: int) -> None:
    shards = cut_shards(sizes, most_bytes)

    assert sorted(i for shard in shards for i in shard) == list(range(len(sizes)))
    assert all(shard == sorted(shard) for shard in shards)
    assert all(sum(sizes[i] for i in shard) <= most_bytes or len(shard) == 1 for shard in shards)
    assert all(shards) or shards == [[]]


@pytest.mark.parametrize(
    "sizes, shards",
    [
        ([], [[]]),
        ([4, 4, 4], [[0, 1], [2]]),
        ([9, 4, 9], [[0], [2], [1]]),  # as huggingface_hub does: the open shard is closed last
        ([4, 9, 4], [[1], [0, 2]]),
    ],
)
def test_shards_are_those_of_the_hub(sizes: list[int], shards: list[list[int]]) -> None:
    assert cut_shards(sizes, 8) == shards


def test_files_and_index_are_named_as_the_hub_names_them() -> None:
    assert shard_name(1, 1) == "model.safetensors"
    assert shard_name(2, 12) == "model-00002-of-00012.safetensors"
    assert render_index({"b": "y", "a": "x"}, 8, {"c": "a"}) == (
        b'{\n  "metadata": {\n    "c": "a",\n    "total_size": 8\n  },\n'
        b'  "weight_map": {\n    "a": "x",\n    "b": "y"\n  }\n}\n'
    )
