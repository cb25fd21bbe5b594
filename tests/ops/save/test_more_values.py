"""Values beyond Python's numbers and strings go through a store: save, load, load_into, diff and export."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict, deque
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.errors import BadInput, CannotStore


def state() -> dict[str, Any]:
    return {
        "set": {1, "b"},
        "deque": deque([torch.ones(2)], maxlen=4),
        "by default": defaultdict(list, {None: [1], 1.5: torch.zeros(1), (0, "a"): 3}),
        "bytes": [bytearray(b"x"), bytearray(b"x" * 999)],
        "when": [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.timedelta(1)],
        "money": Decimal("1.10"),
        "where": Path("a"),
        "torch": [torch.Size([1]), torch.float16, torch.device("cpu")],
        "word": np.str_("a"),
        "numbers": list(range(5000)),
        "sparse": torch.eye(3).to_sparse(),
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def test_they_come_back_the_same(store: Store) -> None:
    info = store.save(state(), step=1)
    back = store.load(info)

    for name, wanted in state().items():
        found = back[name]
        assert type(found) is type(wanted), name
        if name == "set":  # its order is not its own
            assert found == wanted
        else:
            assert repr(found) == repr(wanted), name
    assert store.diff(info, store.save(back, step=2)).same_content
    with store.open_checkpoint(info) as ckpt:
        assert ckpt["numbers"] == list(range(5000))
        assert ckpt["bytes[1]"] == bytearray(b"x" * 999)


def test_an_empty_target_takes_them(store: Store) -> None:
    store.save(state(), step=1)
    target: dict[str, Any] = {}

    store.load_into(target, 1)

    assert repr(target) == repr(store.load(1))


def test_a_difference_between_them_is_named(store: Store) -> None:
    changed = state() | {"set": {1}, "money": Decimal("1.1"), "torch": [torch.Size([1]), torch.float32]}
    store.save(state(), step=1)
    store.save(changed, step=2)

    found = {change.name: (change.kind, change.before, change.after) for change in store.diff(1, 2).plain}

    assert found == {
        "set": ("changed", {1, "b"}, {1}),
        "money": ("changed", Decimal("1.10"), Decimal("1.1")),
        "torch[1]": ("changed", "torch.dtype float16", "torch.dtype float32"),
        "torch[2]": ("removed", "torch.device cpu", None),
    }


def test_they_are_exported_as_json(store: Store, tmp_path: Path) -> None:
    store.save(state() | {"numbers": [1]}, step=1)

    report = store.export_safetensors(1, tmp_path / "out")

    assert [file.name for file in report.files] == ["model.safetensors", "state.json"]
    assert '"decimal": "1.10"' in (tmp_path / "out" / "state.json").read_text("utf-8")


def test_a_part_of_a_sparse_tensor_is_not_selected_alone(store: Store) -> None:
    store.save(state(), step=1)

    assert list(store.load(1, select="sparse")) == ["sparse"]
    with pytest.raises(BadInput, match=r"sparse is one tensor, of the parts indices, values"):
        store.load(1, select="sparse.values")


def test_what_is_refused_names_all_paths_and_nothing_is_stored(store: Store) -> None:
    with pytest.raises(CannotStore) as refused:
        store.save({"a": object(), "b": [print], "c": 1}, step=1)

    assert list(refused.value.refused) == ["a", "b[0]"]
    assert store.checkpoints() == []


def test_what_is_said_of_a_refused_value_does_not_have_its_path_however_that_is_spelled(store: Store) -> None:
    with pytest.raises(CannotStore) as one:
        store.save({"a: b": {"c: d": object()}}, step=1)
    with pytest.raises(CannotStore) as both:
        store.save({"a: b": object(), "": object()}, step=1)

    (why,) = one.value.refused.values()
    assert why.startswith("object cannot be stored (")
    assert set(both.value.refused.values()) == {why}


def test_an_optimizer_with_a_thousand_parameters_is_loaded(store: Store) -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)) for _ in range(1100)], lr=0.5, momentum=0.9)

    saved, target = optimizer(), optimizer()
    saved.param_groups[0]["lr"] = 0.25
    store.save({"optimizer": saved}, step=1)

    store.load_into({"optimizer": target}, 1)

    assert target.param_groups[0]["lr"] == 0.25
