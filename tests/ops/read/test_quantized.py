"""Quantized tensors of a checkpoint: read by their names, and written in the forms that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

import ckstore
from ckstore import Store
from ckstore.errors import BadInput, NoSuchRef
from ckstore.ops.read.formats import export_torch
from ckstore.tensors.named import safe_classes
from tests.support.states import assert_same
from tests.support.subclasses import Rounded, Rounding
from tests.support.torch_versions import without_group

X = torch.arange(8.0).reshape(2, 4) - 3


class Int8Tensor(Rounded):
    """As torchao names its own."""

    __module__ = "torchao.quantization"


class Copying(Rounded):
    """Makes other tensors of its parts."""

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, shape: Any, strides: Any) -> Any:
        copies = {name: part.clone() for name, part in parts.items()}
        return super().__tensor_unflatten__(copies, context, shape, strides)


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_classes, "_allowed", {})
    ckstore.add_safe_globals([Rounded, Rounding, Int8Tensor, Copying])


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert one.rounding == other.rounding
    assert_same(one.codes, other.codes)
    assert_same(one.scale, other.scale)


def test_a_tensor_of_several_is_listed_and_found_by_its_own_name(store: Store) -> None:
    store.save({"model": {"0.weight": Rounded.of(X), "mask": torch.eye(2).to_sparse(), "bias": X}}, step=1)

    with store.open_checkpoint(1) as checkpoint:
        assert checkpoint.keys() == list(checkpoint) == ["model.0.weight", "model.mask", "model.bias"]
        assert len(checkpoint) == 3
        same(Rounded.of(X), checkpoint["model.0.weight"])
        same(Rounded.of(X), checkpoint[r"model.0\.weight"])
        assert_same(torch.eye(2), checkpoint["model.mask"].to_dense())
        assert_same(Rounded.of(X).scale, checkpoint["model.0.weight.scale"])
        assert "model.0.weight" in checkpoint
        assert "model.0.weight.codes" in checkpoint
        assert [leaf.name for leaf in checkpoint.leaves()][:2] == ["model.0.weight.codes", "model.0.weight.scale"]
        assert_same(Rounded.of(X).codes[1:], checkpoint.slice("model.0.weight.codes")[1:])
        with pytest.raises(BadInput, match=r"^model.0.weight is a .*slice one of model.0.weight.codes, model"):
            checkpoint.slice("model.0.weight")
        with pytest.raises(NoSuchRef, match=r"similar: model\.0\.weight"):
            checkpoint["0.weight"]


@pytest.mark.crossed
@pytest.mark.parametrize("kind", [Rounded, Copying])
@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_what_torch_loads_is_the_tensor_itself(store: Store, tmp_path: Path, kind: Any, form: Any) -> None:
    store.save({"model": {"w": kind.of(X), "codes": X}, "step": 1}, step=1)

    store.export(1, tmp_path / "out", format=form)
    if form == "torch":
        back = torch.load(tmp_path / "out", weights_only=False)
    else:
        back = {"model": {"w": torch.zeros(1), "codes": torch.zeros(2, 4)}}
        with pytest.warns(UserWarning, match="torch.distributed is (disabled|unavailable)"):
            dcp_load(back, checkpoint_id=tmp_path / "out", **without_group(dcp_load))

    same(kind.of(X), back["model"]["w"])
    assert_same(X, back["model"]["codes"])


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_large_quantized_tensors_do_not_go_through_memory(
    store: Store, tmp_path: Path, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_torch, "VALUES_MOST_BYTES", 10)
    store.save({"model": {"w": Rounded.of(X)}, "c": {"w": Copying.of(X)}}, step=1)

    store.export(1, tmp_path / "out", format=form, select="model")

    with pytest.raises(BadInput, match=r"c\.w\.codes: 8 B"):
        store.export(1, tmp_path / "other", format=form, select="c")


def test_torchaos_tensors_are_in_safetensors_files_as_its_own_loader_reads_them(store: Store, tmp_path: Path) -> None:
    weight, other = torch.nn.Linear(2, 2).weight.data, Int8Tensor.of(X)
    del other.rounding
    monkey = {"dtype": torch.float32, "shape": (2, 4), "nested": {"block": [1, 4]}, "eps": 0.5}
    Int8Tensor.__tensor_flatten__ = lambda _: (["codes", "scale"], monkey)  # type: ignore[method-assign, assignment]
    try:
        store.save({"0.weight": other, "0.bias": weight, "tied": other.scale, "odd": 1}, step=1)
    finally:
        del Int8Tensor.__tensor_flatten__

    store.export(1, tmp_path / "out", format="safetensors")

    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert set(file.keys()) == {"0._weight_codes", "0._weight_scale", "0.bias", "tied"}
        assert_same(other.codes, file.get_tensor("0._weight_codes"))
    assert json.loads(metadata["tensor_names"]) == ["0.weight", "0.bias"]
    assert json.loads(metadata["0.bias"]) == {"_type": "Tensor"}
    context = {"dtype": {"_type": "torch.dtype", "_data": "float32"}, "shape": [2, 4], "nested": {"block": [1, 4]}}
    wanted = {"_type": "Int8Tensor", "_data": context | {"eps": 0.5}, "_tensor_data_names": ["codes", "scale"]}
    assert json.loads(metadata["0.weight"]) == wanted


@pytest.mark.parametrize(
    "state, why",
    [
        (
            {"a.b": Rounded.of(X)},
            r"^a.b is a tests.*Rounded, which no loader of safetensors files .*torch",
        ),
        (
            {"b": Int8Tensor.of(X)},
            r"^b is a torchao.*Int8Tensor, which torchao finds only by a name with a dot",
        ),
        (
            {"a.b": Int8Tensor.of(X)},
            r"^a.b is a .*Int8Tensor with the object Rounding, which torchao's",
        ),
    ],
)
def test_other_subclasses_are_refused_with_the_way_that_works(
    store: Store, tmp_path: Path, state: Any, why: str
) -> None:
    store.save({**state, "plain": X}, step=1)

    with pytest.raises(BadInput, match=why):
        store.export(1, tmp_path / "out", format="safetensors")

    store.export(1, tmp_path / "out", format="safetensors", select="plain")
    if Int8Tensor not in map(type, state.values()):
        store.export(1, tmp_path / "whole", format="torch")
        return
    with pytest.raises(BadInput, match=r"cannot be pickled: Can't pickle .*Int8Tensor"):  # there is no such module
        store.export(1, tmp_path / "whole", format="torch")
