"""The structure of a state in `ckstore.integrations.dcp`: lists of dicts, and empty dicts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as torch_save

from ckstore import BadInput, CannotStore, RankMismatch, Store
from ckstore.integrations import dcp
from ckstore.integrations.dcp import CkstoreWriter
from tests.ops.read.test_dcp_names import STATES
from tests.support.examples import examples
from tests.support.gloo import Group
from tests.support.torch_versions import without_group

CASES = Path(__file__).with_name("dcp_cases.py")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(scope="module")
def pair(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two processes."""
    with Group(2, tmp_path_factory.mktemp("pair"), CASES, python=warm / "python") as group:
        yield group


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def trained(lr: float) -> tuple[torch.nn.Module, torch.optim.Adam]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.filterwarnings("ignore:resuming from:ckstore.CkstoreWarning")
def test_dcp_loads_the_settings_of_an_optimizer_from_store_save(store: Store, by_name: bool, strict: bool) -> None:
    def state(lr: float) -> dict[str, Any]:
        model, optimizer = trained(lr)
        if not by_name:
            return {"model": model.state_dict(), "optim": optimizer.state_dict()}
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optim": moments}

    store.save(state(0.5), step=1)
    target = state(0.001)
    report = dcp.load(store, target, 1, strict=strict)

    assert target["optim"]["param_groups"][0]["lr"] == 0.5
    assert (report.missing, report.unexpected, report.not_loaded) == ((), (), {})


EMPTY = {
    "scaler": {"scaler": {}},
    "last": {"l": [1, {}]},
    "first": {"l": [{}, torch.ones(1)]},
    "nested": {"a": {"b": {}, "c": [[{}], [1, {"d": {}}]]}},
    "number keys": {"s": {0: {}, 1: {2: {}}}},
    "in a tuple": {"t": ({}, {1: {}}), "l": [({},), 1]},
    "everything": {},
}


@pytest.mark.parametrize("state", EMPTY.values(), ids=EMPTY)
def test_empty_dicts_are_restored(pair: Group, store: Store, state: dict[str, Any]) -> None:
    state = {"w": torch.ones(2), **state}
    dcp.save(store, state, 1)
    pair.run("save_states", store=str(store.path), step=1, states=[state, state], run="pair")

    for ref in ("main@1", "pair@1"):
        assert sorted_texts(store.load(ref)) == sorted_texts(state)
        report = store.load_into(copy.deepcopy(state), ref)
        assert (report.missing, report.unexpected) == ((), ())
        for loaded in pair.run("load_states", store=str(store.path), ref=ref, states=[state, state]):
            assert sorted_texts(loaded) == sorted_texts(state)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(state=STATES)
def test_a_state_is_restored_or_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    state = {"w": torch.ones(1), **state}
    with Store.open_or_init(tmp_path / "store") as store:
        dcp.save(store, state, 1, if_exists="replace")

        assert sorted_texts(store.load(1)) == sorted_texts(state)
        target = copy.deepcopy(state)
        dcp.load(store, target, 1)
        assert sorted_texts(target) == sorted_texts(state)


def sorted_texts(value: Any) -> Any:
    """Return a state as text. DCP restores every mapping as a dict, whose keys may be in another order."""
    if isinstance(value, dict):
        return sorted((repr(key), sorted_texts(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, [sorted_texts(item) for item in value]
    return repr(value.detach() if isinstance(value, torch.Tensor) else value)


def test_an_optimizer_without_moments_is_restored(store: Store) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dcp.save(store, {"optim": optimizer.state_dict()}, 1)
    loaded: Any = store.load(1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)

    other.load_state_dict(loaded["optim"])

    assert loaded["optim"] == optimizer.state_dict()
    assert other.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("value", [{"1": {}, 1: {"b": 2.5}}, [[], {1: [], "1": {0: 1.0, "a": 2}}]])
def test_keys_with_the_same_text_are_refused_before_a_save_and_a_load(store: Store, value: Any) -> None:
    dcp.save(store, {"q": 1}, 1)

    for call in (dcp.save, dcp.load):
        with pytest.raises(BadInput, match=r"^q(\[1\])? has the keys .* gives the same names"):
            call(store, {"q": value}, 1)

    assert store.load(1) == {"q": 1}


def test_a_writer_refuses_a_list_without_one_of_its_elements(store: Store) -> None:
    writer = CkstoreWriter(store, step=1)

    with pytest.raises(BaseException, match=r"l\[0\]: no rank saved this element of the list"):
        torch_save({"l": [{}, torch.ones(1)]}, storage_writer=writer, **without_group(torch_save))

    assert store.checkpoints() == []


def test_an_empty_dict_of_one_rank_has_the_values_of_the_other(pair: Group, store: Store) -> None:
    pair.run("save_states", store=str(store.path), step=1, states=[{"s": {}, "w": 1}, {"s": {2: 3}, "w": 1}])

    assert store.load(1) == {"s": {2: 3}, "w": 1}


DIFFERENT = {
    "value": ({"s": {}}, {"s": 5}, RankMismatch, r"s \(rank 0 and rank 1\)"),
    "empty list": ({"s": {}}, {"s": []}, RankMismatch, r"s \(rank 0 and rank 1\)"),
    "list": ({"s": {}}, {"s": [torch.ones(1)]}, CannotStore, "s: two ranks"),
    "value above": ({"s": {"a": {}}}, {"s": 5}, CannotStore, "s: two ranks"),
    "dict and value": ({"s": {"a": 1}}, {"s": 5}, CannotStore, "s: two ranks"),
    "value and dict": ({"s": 5}, {"s": {"a": 1}}, CannotStore, "s: two ranks"),
    "dict and list": ({"s": {"a": 1}}, {"s": [torch.ones(1)]}, CannotStore, "s: two ranks"),
}


@pytest.mark.parametrize("one, other, kind, text", DIFFERENT.values(), ids=DIFFERENT)
def test_different_kinds_of_values_under_one_name_are_refused(  # noqa: PLR0917
    pair: Group, store: Store, one: Any, other: Any, kind: type[Exception], text: str
) -> None:
    answers = pair.call("save_states", store=str(store.path), step=1, states=[one, other])

    for answer in answers:
        found = [answer, *getattr(answer, "causes", {}).values()]
        assert any(isinstance(error, kind) for error in found), answer
        with pytest.raises(type(answer), match=text):
            raise answer
    assert store.checkpoints() == []


def test_the_rule_warn_keeps_the_value_and_not_the_empty_dict(store: Store, pair: Group) -> None:
    states = [{"s": {}}, {"s": 5}]
    pair.run("save_states", store=str(store.path), step=1, states=states, if_ranks_differ="warn")

    assert store.load(1) == {"s": 5}
