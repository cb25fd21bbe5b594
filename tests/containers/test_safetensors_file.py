"""Safetensors files are cut as the library reads them; what it refuses, and more, is opaque."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.containers.safetensors_file import DTYPE_BITS
from tests.containers.files import bytes_in_torch, bytes_of, cut_checked, safetensors_file
from tests.support.requirements import NEW_SAFETENSORS
from tests.support.states import tensors

_ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # torch has it since 2.8
_HELD = set(safetensors.torch._SIZE)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is _FLOAT4:  # torch 2.9 copies no tensors of this dtype
        return tensor.view(torch.uint8).clone().view(tensor.dtype)
    return tensor.contiguous().clone()


@pytest.mark.property
@given(state=st.dictionaries(st.text(max_size=6).filter(lambda name: name != "__metadata__"), tensors(), max_size=6))
def test_every_tensor_of_save_file_is_found_with_its_bytes(state: dict[str, torch.Tensor]) -> None:
    state = {
        name: _copied(tensor.detach().resolve_conj())
        for name, tensor in state.items()
        if tensor.dtype in _HELD and (tensor.dtype is not _FLOAT4 or (tensor.ndim and tensor.is_contiguous()))
    }
    data = safetensors.torch.save(state, {"format": "pt", "né\n": '"\\'})

    found = cut_checked(data, "model.safetensors")

    assert (found.kind, found.warnings) == ("safetensors", ())
    assert {tensor.name for tensor in found.tensors} == set(state)
    for tensor in found.tensors:
        original = state[tensor.name]
        assert (tensor.dtype, tensor.shape) == (str(original.dtype).removeprefix("torch."), tuple(original.shape))
        assert bytes_of(data, found, tensor) == bytes_in_torch(original)
        start, stop = found.segments[tensor.segment]
        assert stop - start == original.nbytes or original.numel() == 0


@NEW_SAFETENSORS
@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_dtype_of_the_library_is_cut(dtype: str) -> None:
    nbytes = DTYPE_BITS[dtype]
    data = safetensors_file({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, nbytes]}}, bytes(nbytes))
    found = cut_checked(data, "model.safetensors")

    assert found.kind == "safetensors"
    assert found.segments[1] == (len(data) - nbytes, len(data))
    if dtype.startswith("F6_"):
        assert found.tensors == ()
        assert found.warnings == (
            f"1 tensors of 'model.safetensors' are stored without their names: torch does not have {dtype}",
        )
    else:
        assert [tensor.shape for tensor in found.tensors] == [(4,) if dtype == "F4" else (8,)]


@NEW_SAFETENSORS
def test_an_odd_number_of_half_bytes_in_a_row_has_no_name() -> None:
    found = cut_checked(
        safetensors_file({"a": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}, bytes(3)), "x.safetensors"
    )

    assert (len(found.segments), found.tensors) == (2, ())


REFUSED: dict[str, tuple[Any, int]] = {
    "a hole before": ({"a": {**_ONE, "data_offsets": [4, 8]}}, 8),
    "a hole after": ({"a": _ONE}, 5),
    "an overlap": ({"a": {**_ONE, "shape": [2], "data_offsets": [0, 8]}, "b": {**_ONE, "data_offsets": [4, 8]}}, 8),
    "one place for two": ({"a": _ONE, "b": _ONE}, 4),
    "an empty tensor inside another": ({"a": _ONE, "b": {**_ONE, "shape": [0], "data_offsets": [2, 2]}}, 4),
    "offsets beyond the end": ({"a": {**_ONE, "shape": [2], "data_offsets": [0, 8]}}, 4),
    "offsets backwards": ({"a": {**_ONE, "shape": [0], "data_offsets": [4, 0]}}, 4),
    "three offsets": ({"a": {**_ONE, "data_offsets": [0, 4, 4]}}, 4),
    "another size": ({"a": {**_ONE, "shape": [2]}}, 4),
    "a huge shape": ({"a": {**_ONE, "shape": [2**62, 4]}}, 4),
    "a product that wraps to 0": ({"a": {**_ONE, "shape": [2**32, 2**32], "data_offsets": [0, 0]}}, 0),
    "a huge empty shape": ({"a": {**_ONE, "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}, 0),
    "too many sizes": ({"a": {**_ONE, "shape": [1] * 65}}, 4),
    "a size below 0": ({"a": {**_ONE, "shape": [-1]}}, 4),
    "a size that is true": ({"a": {**_ONE, "shape": [True]}}, 4),
    "a size with a point": ({"a": {**_ONE, "shape": [1.0]}}, 4),
    "a size in a string": ({"a": {**_ONE, "shape": ["1"]}}, 4),
    "a shape without a value": ({"a": {**_ONE, "shape": None}}, 4),
    "an unknown dtype": ({"a": {**_ONE, "dtype": "F33"}}, 4),
    "a dtype that is a number": ({"a": {**_ONE, "dtype": 32}}, 4),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, 4),
    "a member more": ({"a": {**_ONE, "strides": [1]}}, 4),
    "an entry that is an array": ({"a": ["F32", [1], [0, 4]]}, 4),
    "metadata with a number": ({"__metadata__": {"a": 1}, "a": _ONE}, 4),
    "metadata with a tree": ({"__metadata__": {"a": {}}, "a": _ONE}, 4),
    "a name twice": (b'{"a":%b,"a":%b}' % ((json.dumps(_ONE).encode(),) * 2), 4),
    "a name twice, once escaped": (b'{"a":%b,"\\u0061":%b}' % ((json.dumps(_ONE).encode(),) * 2), 4),
    "a dtype twice": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4),
    "a number of 10,000 digits": (b'{"a":{"dtype":"F32","shape":[1%b],"data_offsets":[0,4]}}' % (b"0" * 9999), 4),
    "a number with a zero before": (b'{"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}', 4),
    "half of a surrogate pair": (b'{"\\ud800":%b}' % json.dumps(_ONE).encode(), 4),
    "no UTF-8": (b'{"\xff":%b}' % json.dumps(_ONE).encode(), 4),
    "a control character": (b'{"\n":%b}' % json.dumps(_ONE).encode(), 4),
    "an unknown escape": (b'{"\\x":%b}' % json.dumps(_ONE).encode(), 4),
    "something after": (json.dumps({"a": _ONE}).encode() + b"\0", 4),
    "a comma at the end": (b'{"a":%b,}' % json.dumps(_ONE).encode(), 4),
    "no end": (b'{"a":%b' % json.dumps(_ONE).encode(), 4),
    "a string without an end": (b'{"a', 0),
    "a bomb of arrays": (b'{"a":' + b"[" * 100_000, 0),
    "a bomb of objects": (b'{"a":' * 100_000, 0),
    "an empty object with data": ({}, 1),
}


@pytest.mark.parametrize("header,nbytes", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_exactly_so_is_opaque(header: Any, nbytes: int) -> None:
    data = safetensors_file(header, bytes(nbytes))

    found = cut_checked(data, "Model.SAFETENSORS")

    assert (found.kind, found.segments, found.tensors) == ("", ((0, len(data)),), ())
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(
        "'Model.SAFETENSORS' is not a valid safetensors file, so it is stored as opaque bytes: "
    )
    assert len(found.warnings[0]) < 400
    assert cut_checked(data, "model.bin").warnings == ()


def test_the_same_said_with_spaces_and_in_another_order_is_cut() -> None:
    header = (
        b'{ "__metadata__" : { } ,\n"a\\u00e9":\t{"data_offsets":[ 0 , 4 ],"shape": [ ],"d\\u0074ype":"F32" } }\r\n '
    )

    found = cut_checked(safetensors_file(header, bytes(4)))

    assert [(tensor.name, tensor.shape, tensor.segment) for tensor in found.tensors] == [("aé", (), 1)]


def test_a_file_of_nothing_but_a_header_is_cut() -> None:
    found = cut_checked(safetensors_file({"e": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}))

    assert (found.kind, len(found.segments)) == ("safetensors", 1)
    assert [(tensor.shape, tensor.segment) for tensor in found.tensors] == [((0, 3), 0)]


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b" " * 10**6,
        b'{"' + b'\\"' * 10**6,
        b'{"a":{"shape":[' + b" " * 10**6 + b"1" + b" " * 10**6 + b"x",
        b'{"a":{"shape":[' + b"1," * 10**6,
    ],
    ids=["spaces", "escapes", "spaces in an array", "sizes"],
)
def test_a_long_header_of_nothing_is_refused_in_time_that_grows_with_its_length(header: bytes) -> None:
    before = time.process_time()
    found = cut_checked(safetensors_file(header))

    assert found.kind == ""
    assert time.process_time() - before < 5
