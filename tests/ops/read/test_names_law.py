"""`select` and `rename` do what their definitions say, for any names, globs and prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import NoSuchRef, Store

_KEYS = ("a", "b", "ab", "ba", "aab", "abab", "a*", "a?b", "bab")
_DOTTED = ("a", "ab", "aab", "abab", "a.b", "a.ab.b", "ab.ab.aa", ".a.b")
_EXAMPLES = 300
"""More than usual, since an example takes only two milliseconds."""


def _joined(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=4).map("".join)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.init(tmp_path_factory.mktemp("names") / "store") as made:
        numbers = {name: np.array(float(i)) for i, name in enumerate(_names())}
        state = {key: {"x": numbers[f"{key}.x"], "0": [numbers[f"{key}.0[{i}]"] for i in range(2)]} for key in _KEYS}
        made.save(state, step=1)
        made.save({key: np.arange(3.0) for key in _DOTTED}, step=2)
        yield made


def _names() -> list[str]:
    return [f"{key}{rest}" for key in _KEYS for rest in (".x", ".0[0]", ".0[1]")]


def is_selected(name: str, globs: list[str]) -> bool:
    """Whether a name is selected according to the documentation of `Store.load`, which compares it with each glob."""
    return any(
        name == glob
        or (name.startswith(glob) and name[len(glob)] in ".[")
        or fnmatchcase(name, glob.replace("[", "[[]"))
        for glob in globs
    )


def numbers_in(state: object) -> Iterator[float]:
    if isinstance(state, np.ndarray):
        yield float(state)
    else:
        for item in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
            yield from numbers_in(item)


@settings(max_examples=_EXAMPLES)
@given(st.lists(_joined("a", "b", "*", "?", ".", ".x", ".0", "[0]", "[01]", "["), min_size=1, max_size=4))
def test_a_name_is_selected_if_one_of_the_globs_selects_it(store: Store, globs: list[str]) -> None:
    wanted = {float(i) for i, name in enumerate(_names()) if is_selected(name, globs)}

    if wanted:
        assert {*numbers_in(store.load(1, select=globs))} == wanted
    else:
        with pytest.raises(NoSuchRef):
            store.load(1, select=globs)


def renamed(key: str, rename: dict[str, str]) -> str:
    """Rename a key according to the documentation of `Store.load_into`, with a search through all prefixes."""
    done, rest = "", key
    left = sorted((old for old in rename if old and not old.startswith(".")), key=len, reverse=True)
    if "" in rename and not any(rest.startswith(old) for old in left):
        done = rename[""]
    while (old := next((old for old in left if rest.startswith(old)), None)) is not None:
        done, rest = done + rename[old], rest[len(old) :]
        left.remove(old)
    name = done + rest
    for old, new in rename.items():
        if old.startswith("."):
            name = name.replace(old, new)
    return name


_PARTS = ("a", "b", "ab", "ba", ".", "aa")


@settings(max_examples=_EXAMPLES)
@given(key=st.sampled_from(_DOTTED), rename=st.dictionaries(_joined(*_PARTS), _joined(*_PARTS), max_size=8))
def test_the_longest_prefix_is_replaced_first_and_each_prefix_once(
    store: Store, key: str, rename: dict[str, str]
) -> None:
    target = {renamed(key, rename): np.zeros(3)}

    store.load_into(target, 2, select=lambda name: name.replace("\\", "") == key, rename=rename)

    assert [value.tolist() for value in target.values()] == [[0.0, 1.0, 2.0]]
