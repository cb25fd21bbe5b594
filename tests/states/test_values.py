"""Values of libraries that people keep in states: back as what they are, or refused with a line that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ckstore
from ckstore import CannotStore, Store
from ckstore.tensors.named import safe_classes


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(safe_classes, "_allowed", {})
    return Store.init(tmp_path / "store")


def as_advised(store: Store, state: Any) -> None:
    """Save a state; what is refused is allowed by the line of the error."""
    for _ in range(10):
        try:
            store.save(state, step=1, if_exists="replace")
        except CannotStore as error:
            refusal = next(iter(error.refused.values()))
            line = str(refusal).partition("allow its class: ")[2].partition(")")[0] + ")"
            exec(line, {"ckstore": ckstore})  # noqa: S102 - the advice itself is tried
        else:
            return
    raise AssertionError("the advice does not help")


def test_a_tensor_dict_comes_back_as_one_and_is_loaded_in_place(store: Store) -> None:
    library: Any = pytest.importorskip("tensordict")
    made = library.TensorDict({"a": torch.ones(2, 3), "b": {"c": torch.zeros(2)}}, batch_size=[2], names=["time"])
    store.save({"td": made.lock_()}, step=1)

    back: Any = store.load(1)
    target = library.TensorDict({"a": torch.zeros(2, 3), "b": {"c": torch.ones(2)}}, batch_size=[2])
    filled = target["a"]
    store.load_into({"td": target}, 1)

    assert type(back["td"]) is library.TensorDict
    assert (back["td"].batch_size, back["td"].names, back["td"].is_locked) == (torch.Size([2]), ["time"], False)
    assert bool((back["td"] == made).all())
    assert target["a"] is filled
    assert bool((target == made).all())
    mixed = library.TensorDict({"s": "text", "n": torch.ones(1)}, batch_size=[])
    with pytest.raises(CannotStore, match=r"with 's', which is not a tensor, .*store value.to_dict\(\)"):
        store.save({"td": mixed}, step=2)
    store.save({"td": mixed.to_dict()}, step=2)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "GaLore": {"rank": 4, "update_proj_gap": 2, "scale": 0.25, "projection_type": "std"},
    "Conda": {"update_proj_gap": 2, "scale": 1.0, "projection_type": "std"},
    "ScalableShampoo": {"start_preconditioning_step": 1, "preconditioning_compute_steps": 1},
    "SCION": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_keeps_objects_goes_on_bit_for_bit(store: Store, name: str) -> None:
    library: Any = pytest.importorskip("pytorch_optimizer")

    def make() -> tuple[torch.nn.Module, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 16)
        in_group = "rank" in OPTIMIZERS[name] or name == "Conda"
        group = {"params": list(model.parameters()), **(OPTIMIZERS[name] if in_group else {})}
        return model, getattr(library, name)([group], **({} if in_group else OPTIMIZERS[name]))

    def train(model: torch.nn.Module, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 16)).square().mean().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer, 2)
    as_advised(store, {"m": model, "o": optimizer})
    other, resumed = make()
    store.load_into({"m": other, "o": resumed}, 1)
    train(model, optimizer, 3)
    train(other, resumed, 3)

    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_configuration_of_omegaconf_is_stored_as_its_container(store: Store) -> None:
    library: Any = pytest.importorskip("omegaconf")
    value = library.OmegaConf.create({"a": {"b": [1, "${a.c}"], "c": 2}})

    with pytest.raises(CannotStore, match=r"store omegaconf.OmegaConf.to_container\(value\)"):
        store.save({"config": value}, step=1)
    store.save({"config": library.OmegaConf.to_container(value)}, step=1)

    assert library.OmegaConf.create(store.load(1)["config"]) == value


def test_a_model_of_pydantic_comes_back_as_one(store: Store) -> None:
    library: Any = pytest.importorskip("pydantic")
    kind = library.create_model("Settings", __module__=__name__, lr=(float, 0.1), sizes=(list[int], ...))

    with pytest.raises(CannotStore, match=r"allow its class: .*; or store value.model_dump\(\)"):
        store.save({"s": kind(sizes=[1])}, step=1)
    ckstore.add_safe_globals([kind])
    store.save({"s": kind(sizes=[1])}, step=1)

    back: Any = store.load(1)
    assert back["s"] == kind(sizes=[1])
    assert back["s"].model_fields_set == {"sizes"}


def test_a_batch_of_a_tokenizer_comes_back_as_one(store: Store) -> None:
    library: Any = pytest.importorskip("transformers")
    batch = library.BatchEncoding({"input_ids": torch.arange(3)})

    as_advised(store, {"batch": batch})

    back: Any = store.load(1)
    assert type(back["batch"]) is library.BatchEncoding
    assert torch.equal(back["batch"].input_ids, batch.input_ids)
