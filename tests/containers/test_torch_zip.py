"""Archives of torch.save are cut at their records, and their tensors have the names that torch.load would give."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from tests.containers.files import bytes_in_torch, bytes_of, cut_checked, pickle_file, torch_file
from tests.support.states import states, tensor_over


def tensors_of(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of a state by their plain names; the first of each name."""
    found: dict[str, torch.Tensor] = {}
    if isinstance(value, torch.Tensor):
        found[path] = value
    elif isinstance(value, dict):
        for key, item in value.items():
            joined = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
            found = tensors_of(item, joined) | found
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            found = tensors_of(item, f"{path}[{i}]") | found
    return found


def assert_named(data: bytes, state: Any, *, all_named: bool = True) -> None:
    """Every tensor of `state` has its name, dtype, shape and bytes in the file `data`."""
    found = cut_checked(data, "model.pt")
    wanted = tensors_of(state)

    assert found.kind == "torch-zip"
    assert {tensor.name for tensor in found.tensors} <= set(wanted)
    for tensor in found.tensors:
        original = wanted[tensor.name].detach()
        assert (tensor.dtype, tensor.shape) == (str(original.dtype).removeprefix("torch."), tuple(original.shape))
        assert bytes_of(data, found, tensor) == bytes_in_torch(original)
        assert not original.numel() or (tensor.strides is None) == original.is_contiguous()
    if all_named:
        missing = [wanted[name] for name in wanted.keys() - {tensor.name for tensor in found.tensors}]
        assert all(tensor.is_conj() or tensor.is_neg() for tensor in missing)


@pytest.mark.property
@given(state=states(), protocol=st.sampled_from([2, 2, 4, 5]))
def test_every_tensor_that_torch_save_writes_has_its_name_and_bytes(state: Any, protocol: int) -> None:
    try:
        data = torch_file(state, pickle_protocol=protocol)
    except RuntimeError:  # torch.save refuses one memory under two dtypes
        reject()

    assert_named(data, state)


@pytest.mark.parametrize("dtype", [name for name in TORCH_ITEMSIZE if hasattr(torch, name)])
def test_a_record_is_the_same_bytes_as_in_safetensors(dtype: str) -> None:
    kind = getattr(torch, dtype)
    memory = torch.arange(6 * kind.itemsize, dtype=torch.uint8)
    tensor = tensor_over(memory % 2 if kind is torch.bool else memory, kind, (2, 3), (3, 1), 0)
    data = torch_file({"a": {"w": tensor}})
    found = cut_checked(data, "x.pt")

    (named,) = found.tensors
    assert (named.name, named.dtype, named.offset, named.strides) == ("a.w", dtype, 0, None)
    record = data[slice(*found.segments[named.segment])]
    assert record == bytes_in_torch(tensor)
    if kind in safetensors.torch._SIZE:
        other = safetensors.torch.save({"w": tensor})
        cut = cut_checked(other)
        assert other[slice(*cut.segments[cut.tensors[0].segment])] == record


def test_views_and_ties_lie_in_one_segment() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"base": base, "row": base[1], "t": base.t(), "same": base, "wide": base[:1].expand(5, 4)}
    data = torch_file(state)

    assert_named(data, state)
    found = {tensor.name: tensor for tensor in cut_checked(data).tensors}
    assert len({tensor.segment for tensor in found.values()}) == 1
    assert (found["row"].offset, found["t"].strides, found["wide"].strides) == (16, (1, 4), (0, 1))


def test_a_training_state_has_the_names_of_its_parameters_and_moments() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": [torch.get_rng_state()],
        "step": 3,
        "by default": defaultdict(list, {"x": [torch.zeros(1)]}),
    }
    data = torch_file(state)
    found = cut_checked(data, "x.pt")

    assert_named(data, state)
    names = {tensor.name for tensor in found.tensors}
    assert names >= {"model.0.weight", "model.1.num_batches_tracked", "optimizer.state[0].exp_avg", "rng[0]"}
    assert names >= {"by default.x[0]"}
    assert found.warnings == ()


class Marked(torch.nn.Parameter):
    """A parameter of a class of its own."""


def test_parameters_buffers_and_tensors_with_attributes_are_tensors() -> None:
    marked = Marked(torch.ones(2))
    marked.mark = 1  # type: ignore[attr-defined]
    plain = torch.nn.Parameter(torch.ones(3))
    plain.mark = 1  # type: ignore[attr-defined]
    tensor = torch.ones(4)
    tensor.mark = 1  # type: ignore[attr-defined]
    state = [marked, plain, tensor, torch.nn.Buffer(torch.ones(5)), torch.nn.Parameter(torch.ones(6))]
    data = torch_file(state)
    found = cut_checked(data)

    assert [tensor.shape for tensor in found.tensors][1:] == [(3,), (4,), (5,), (6,)]
    assert_named(data, state, all_named=False)


def test_what_is_not_its_bytes_has_no_name() -> None:
    wave = torch.ones(2, dtype=torch.complex64)
    state = {
        "conj": wave.conj(),
        "neg": torch.ones(2, dtype=torch.complex64).conj().imag,
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "storage": torch.ones(2).untyped_storage(),
        "real": torch.ones(1),
    }
    found = cut_checked(torch_file(state), "x.pt")

    assert [tensor.name for tensor in found.tensors] == ["real"]
    assert found.warnings == (
        (
            "'x.pt': 2 of its tensors' records have no name: they are parts of sparse tensors, "
            "which load with file= returns"
        ),
        "'x.pt': 3 of its tensors' records have no name: they belong to objects that ckstore does not read",
    )


def test_a_lone_tensor_has_the_empty_name() -> None:
    assert [tensor.name for tensor in cut_checked(torch_file(torch.ones(2))).tensors] == [""]


def test_the_first_of_two_tensors_keeps_a_name() -> None:
    found = cut_checked(torch_file({"a": {"b": torch.ones(2)}, "a.b": torch.ones(3), "a[0]": 1}), "x.pt")

    assert [(tensor.name, tensor.shape) for tensor in found.tensors] == [("a.b", (2,))]
    assert found.warnings == ("'x.pt': more than one tensor has the name 'a.b', which only the first keeps",)


def test_a_file_of_before_torch_1_6_is_cut_at_its_storages() -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3), "b": {"t": torch.ones(2, 3).t()}, "e": torch.empty(0)}
    data = torch_file(state, _use_new_zipfile_serialization=False)
    found = cut_checked(data, "x.pt")

    assert (found.kind, found.warnings) == ("torch-legacy", ())
    tensors = {tensor.name: tensor for tensor in found.tensors}
    assert tensors.keys() == {"w", "b.t", "e"}
    for name, tensor in tensors_of(state).items():
        assert bytes_of(data, found, tensors[name]) == bytes_in_torch(tensor)
    assert data[slice(*found.segments[tensors["w"].segment])] == bytes_in_torch(state["w"])  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["cut", "longer", "another count"])
def test_a_file_that_only_looks_like_one_of_before_torch_1_6_is_opaque(how: str) -> None:
    data = torch_file({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    spoiled = {"cut": data[:-1], "longer": data + b"x", "another count": data[:-16] + b"\3" + data[-15:]}[how]
    found = cut_checked(spoiled, "x.pt")

    assert (found.kind, len(found.segments), found.tensors) == ("", 1, ())
    assert len(found.warnings) == 1


def test_a_tensor_made_by_an_unknown_function_has_no_name() -> None:
    data = torch_file(OrderedDict(a=torch.ones(2)))
    found = cut_checked(data.replace(b"_rebuild_tensor_v2", b"_rebuild_unknown_1"), "x.pt")

    assert (found.kind, found.tensors) == ("torch-zip", ())
    assert len(found.warnings) == 1


def view(
    *, shape: Any = (2,), strides: Any = (1,), offset: Any = 0, key: Any = "0", kind: str = "FloatStorage"
) -> bytes:
    """Return the pickle of a dict with one tensor, as torch.save writes it."""

    storage = b"".join(map(part, (key, "cpu", 2)))
    rest = b"".join(map(part, (offset, shape, strides, False, {})))
    return (
        b"\x80\x02}" + part("t") + b"ctorch._utils\n_rebuild_tensor_v2\n("
        b"(" + part("storage") + b"ctorch\n" + kind.encode() + b"\n" + storage + b"tQ" + rest + b"tRs."
    )


def part(value: Any) -> bytes:
    """Return the opcodes that put `value` on the stack."""
    return pickle.dumps(value, 2)[2:-1]


def test_a_view_inside_its_record_is_named() -> None:
    found = cut_checked(pickle_file(view(), {"0": bytes(8)}), "x.pt")

    assert [(tensor.name, tensor.shape) for tensor in found.tensors] == [("t", (2,))]
    assert found.warnings == ()


OUTSIDE: dict[str, dict[str, Any]] = {
    "one element more": {"shape": (3,)},
    "an offset": {"offset": 1},
    "a stride": {"strides": (2,)},
    "another record": {"key": "1"},
    "no record of data": {"key": "../version"},
    "a huge shape": {"shape": (2**62, 2**62), "strides": (0, 0)},
    "a huge empty shape": {"shape": (2**62, 2**62, 0), "strides": (0, 0, 0)},
    "a huge stride": {"shape": (1,), "strides": (2**63 - 1,), "offset": 2**62},
    "doubles": {"kind": "DoubleStorage"},
}
ODD: dict[str, dict[str, Any]] = {
    "a shape below 0": {"shape": (-1,)},
    "a stride below 0": {"strides": (-1,)},
    "an offset below 0": {"offset": -1},
    "a stride too few": {"strides": ()},
    "a size that is true": {"shape": (True,)},
    "a size without a value": {"shape": (None,)},
    "a shape that is a list": {"shape": [2]},
    "a key that is a number": {"key": 0},
    "an integer of 10,000 bits": {"shape": (2**10_000,)},
    "too many sizes": {"shape": (1,) * 65, "strides": (1,) * 65},
    "quantized numbers": {"kind": "QUInt8Storage"},
}


@pytest.mark.parametrize("how", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_view_outside_its_record_has_no_name(how: dict[str, Any]) -> None:
    found = cut_checked(pickle_file(view(**how), {"0": bytes(8)}), "x.pt")

    assert (found.kind, found.tensors) == ("torch-zip", ())
    assert "'x.pt': 1 tensors have no name: they reach beyond their records" in found.warnings


@pytest.mark.parametrize("how", ODD.values(), ids=ODD.keys())
def test_a_view_that_torch_would_not_write_has_no_name(how: dict[str, Any]) -> None:
    found = cut_checked(pickle_file(view(**how), {"0": bytes(8)}), "x.pt")

    assert (found.kind, found.tensors) == ("torch-zip", ())
    assert found.warnings == (
        "'x.pt': 1 of its tensors' records have no name: they belong to objects that ckstore does not read",
    )


@pytest.mark.parametrize("byteorder", [b"big", b"little\n", b"l" * 100])
def test_numbers_in_another_order_have_no_names(byteorder: bytes) -> None:
    found = cut_checked(pickle_file(view(), {"0": bytes(8)}, byteorder), "x.pt")

    assert (found.kind, found.tensors) == ("torch-zip", ())
    assert found.warnings[0].startswith("'x.pt': its tensors are stored without names: the record")
    assert len(found.segments) > 1
