"""The names of values in `torch.distributed.checkpoint` are those that torch itself gives."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from ckstore import Store
from ckstore.ops.read.dcp_entries import entries_of
from ckstore.ops.refs.find import open_directory
from ckstore.store import context_of
from tests.support.examples import examples
from tests.support.states import assert_same
from tests.support.torch_versions import without_group

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

KEYS = st.sampled_from(["a", "b", 0, 1])
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(torch.ones(2), torch.tensor(1), torch.zeros(0), torch.eye(2).to_sparse(), torch.nn.Parameter(torch.ones(1))),
        *(np.ones(2), np.float32(1), 1, 2.5, True, None, "x", b"x"),
        *("x" * 5000, b"x" * 300, list(range(1500))),  # stored in blobs, as tensors are
        *({}, [], (), OrderedDict()),
    ]
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(KEYS, inner, max_size=3)
    lists = st.lists(inner, max_size=3)
    return dicts | dicts.map(OrderedDict) | lists | lists.map(tuple)


STATES = st.dictionaries(st.sampled_from(["p", "q"]), st.recursive(LEAVES, containers, max_leaves=8), max_size=2)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(state=STATES)
def test_the_names_and_paths_of_a_saved_state_are_those_of_torch(tmp_path: Path, state: dict[str, Any]) -> None:
    with Store.open_or_init(tmp_path / "store") as store:
        info = store.save(state, step=1, if_exists="replace")
        with open_directory(context_of(store), info) as directory:
            found = {name: value.path for name, value in entries_of(directory.manifest).items()}

    assert found == flatten_state_dict(state)[1]


@pytest.mark.parametrize(
    "value",
    [
        [np.ones(2), np.zeros(3)],
        np.random.RandomState(1).get_state(),
        ["x" * 5000, "y"],
        [b"x" * 300],
        [list(range(2000)), 1],
        [1, {"lr": 0.5, "betas": (0.9, 0.99)}],
        [{}, torch.ones(1)],
        {"state": {}, "groups": [{}]},
    ],
    ids=["arrays", "random state", "long strings", "bytes", "numbers", "dicts", "empty dict", "empty dicts"],
)
def test_torch_loads_an_exported_value_in_place_and_as_a_whole(tmp_path: Path, value: Any) -> None:
    state = {"w": torch.ones(3), "value": value}
    target = {**copy.deepcopy(state), "w": torch.zeros(3)}
    with Store.init(tmp_path / "store") as store:
        store.save(state, step=1)
        store.export(1, tmp_path / "dcp", format="dcp")

    torch_load(target, checkpoint_id=tmp_path / "dcp", **without_group(torch_load))
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "whole.pt")
    assert_same(state, target)
    assert_same(state, torch.load(tmp_path / "whole.pt", weights_only=False))
