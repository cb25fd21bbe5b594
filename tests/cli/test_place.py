from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.errors import StoreNotFound
from ckstore_cli._place import find_store, place_for_new


def make(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "store.json").touch()
    return path


@given(has=st.lists(st.booleans(), min_size=1, max_size=5), at=st.integers(0, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_nearest_store_at_or_above_the_directory_is_taken(
    has: list[bool], at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("tree")
    levels = [top.joinpath(*"abcde"[:depth]) for depth in range(len(has))]
    for level, there in zip(levels, has, strict=True):
        level.mkdir(exist_ok=True)
        if there:
            make(level / ".ckstore")
    here = levels[min(at, len(levels) - 1)]
    above = [level for level in levels if here.is_relative_to(level)]
    wanted = [level / ".ckstore" for level in above if (level / ".ckstore").exists()]

    if wanted:
        assert find_store(None, {}, here) == wanted[-1]
    else:
        with pytest.raises(StoreNotFound, match="or above"):
            find_store(None, {}, here)


def test_the_option_wins_over_the_variable_and_that_over_the_directory(tmp_path: Path) -> None:
    option, variable = make(tmp_path / "option"), make(tmp_path / "variable")
    here = make(tmp_path / ".ckstore")
    env = {"CKSTORE_PATH": str(variable)}

    assert find_store(option, env, tmp_path) == option
    assert find_store(None, env, tmp_path) == variable
    assert find_store(None, {"CKSTORE_PATH": ""}, tmp_path) == here


@pytest.mark.parametrize("named", ["--store", "CKSTORE_PATH"])
def test_a_place_that_was_named_is_the_only_one_tried(named: str, tmp_path: Path) -> None:
    make(tmp_path / ".ckstore")
    option = Path("gone") if named == "--store" else None

    with pytest.raises(StoreNotFound, match=rf"gone \(from {named}\)") as excinfo:
        find_store(option, {"CKSTORE_PATH": "gone"}, tmp_path)

    assert "ckstore init gone" in excinfo.value.hint


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path: Path) -> None:
    make(tmp_path / "a")

    assert find_store(Path("a"), {}, tmp_path) == tmp_path / "a"


def test_a_file_in_the_way_is_no_store(tmp_path: Path) -> None:
    (tmp_path / ".ckstore").touch()

    with pytest.raises(StoreNotFound):
        find_store(None, {}, tmp_path)
    with pytest.raises(StoreNotFound):
        find_store(tmp_path / ".ckstore", {}, tmp_path)


def test_a_new_store_is_made_where_it_will_be_looked_for() -> None:
    env = {"CKSTORE_PATH": "variable"}

    assert place_for_new(Path("given"), Path("option"), env) == Path("given")
    assert place_for_new(None, Path("option"), env) == Path("option")
    assert place_for_new(None, None, env) == Path("variable")
    assert place_for_new(None, None, {}) == Path(".ckstore")
