"""What a framework adds to its checkpoints is kept as far as a store holds it, and what is changed is named."""

from __future__ import annotations

import functools
import sys
import warnings
from collections import UserDict
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning
from ckstore.integrations.extra_values import kept_as_text, warn_once, without_refused


class Settings(Mapping[str, Any]):
    """A mapping that is no dict, as configurations often are."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not made yet")


def test_what_can_be_stored_is_kept_as_it_is() -> None:
    changed: dict[str, str] = {}
    value = {"lr": 0.1, "sizes": (1, 2), "w": torch.ones(2)}

    assert kept_as_text(value, "hparams", changed) is value
    assert changed == {}


def test_the_rest_is_kept_as_plain_containers_and_texts_and_named() -> None:
    changed: dict[str, str] = {}
    value = {
        "lr": 0.1,
        "make": functools.partial(torch.optim.AdamW, lr=0.1),
        "act": torch.nn.GELU,
        "net": Settings({"width": 8, "loss": print}),
        "list": [1, Shy()],
        b"k": 1,
    }

    kept = kept_as_text(value, "hparams", changed)

    assert kept["lr"] == 0.1
    assert kept["make"].startswith("functools.partial(<class 'torch.optim.adamw.AdamW'>")
    assert kept["act"] == "torch.nn.modules.activation.GELU"
    assert kept["net"] == {"width": 8, "loss": "print"}
    assert kept["list"][1].endswith("test_extra_values.Shy>")
    assert kept["b'k'"] == 1
    assert sorted(changed) == [
        "hparams (a key)",
        "hparams.act",
        "hparams.list[1]",
        "hparams.make",
        "hparams.net",
        "hparams.net.loss",
    ]
    assert changed["hparams.make"] == "functools.partial, kept as text"


def test_a_value_that_contains_itself_ends_as_a_text() -> None:
    changed: dict[str, str] = {}
    endless: dict[str, Any] = {"lr": 1}
    endless["again"] = endless

    kept = kept_as_text(endless, "hparams", changed)

    assert kept["lr"] == 1
    assert list(changed.values()) == ["dict, kept as text"]


def test_a_configuration_of_omegaconf_becomes_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    class Container(UserDict[str, Any]):
        pass

    class OmegaConf:
        @staticmethod
        def to_container(config: Container) -> dict[str, Any]:
            return {**config.data, "resolved": False}

    module: Any = ModuleType("omegaconf")
    module.Container, module.OmegaConf = Container, OmegaConf
    monkeypatch.setitem(sys.modules, "omegaconf", module)
    changed: dict[str, str] = {}

    kept = kept_as_text({"net": Container(loss="${loss}")}, "hparams", changed)

    assert kept == {"net": {"loss": "${loss}", "resolved": False}}
    assert next(iter(changed.values())).endswith("Container, kept as a dict")


def test_a_scheduler_keeps_its_own_of_what_cannot_be_stored() -> None:
    changed: dict[str, str] = {}

    kept = without_refused({"last_epoch": 3, "fn": print}, "lr_schedulers[0]", changed)

    assert kept == {"last_epoch": 3}
    assert changed == {"lr_schedulers[0].fn": "builtin_function_or_method, left out"}


def test_each_name_is_warned_of_once() -> None:
    told: set[str] = set()

    with pytest.warns(CkstoreWarning, match=r"hparams.x \(partial, kept as text\). Pass it again"):
        warn_once({"hparams.x": "partial, kept as text"}, told, "Pass it again.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_once({"hparams.x": "partial, kept as text"}, told, "Pass it again.")
