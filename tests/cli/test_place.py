from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import StoreNotFound, UnsafePlace
from ckstore_cli._place import find_store, place_for_new
from tests.support.examples import examples
from tests.support.requirements import require_root
from tests.support.users import common_folder, users


def make(path: Path) -> Path:
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    (path / "store.json").touch()
    return path


@given(has=st.lists(st.sampled_from(["", "inner", "itself", "foreign"]), min_size=1, max_size=5), at=st.integers(0, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_nearest_store_at_or_above_the_directory_is_taken(
    has: list[str], at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("tree")
    levels = [top.joinpath(*"abcde"[:depth]) for depth in range(len(has))]
    stores = {"inner": ".ckstore", "itself": "."}
    for level, kind in zip(levels, has, strict=True):
        level.mkdir(exist_ok=True)
        if kind in stores:
            make(level / stores[kind])
        elif kind:
            (level / "store.json").touch()  # of another program
    here = levels[min(at, len(levels) - 1)]
    above = [(level, kind) for level, kind in zip(levels, has, strict=True) if here.is_relative_to(level)]
    wanted = [level / stores[kind] for level, kind in above if kind in stores]

    if wanted:
        assert find_store(None, {}, here) == wanted[-1]
    else:
        with pytest.raises(StoreNotFound, match="is not in a store"):
            find_store(None, {}, here)


@pytest.mark.parametrize("place", [".", "checkpoints/main/1.x", "blobs/ab"])
def test_a_store_is_found_from_anywhere_in_it(place: str, tmp_path: Path) -> None:
    here = make(tmp_path / "store") / place
    here.mkdir(parents=True, exist_ok=True)

    assert find_store(None, {}, here) == tmp_path / "store"


def test_of_two_stores_that_are_equally_near_none_is_taken(tmp_path: Path) -> None:
    outer = make(tmp_path / "a store")
    make(outer / ".ckstore")

    with pytest.raises(StoreNotFound) as refused:
        find_store(None, {}, outer)

    assert refused.value.hint == f"name one of them: --store '{outer}' or --store '{outer}/.ckstore'"
    assert find_store(None, {}, outer / ".ckstore") == outer / ".ckstore"


def test_stores_in_the_directory_or_beside_it_are_named(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make(tmp_path / "project" / name)
    (tmp_path / "project" / "scripts").mkdir()
    (tmp_path / "project" / "c").mkdir()
    (tmp_path / "project" / "c" / "store.json").touch()  # of another program

    with pytest.raises(StoreNotFound) as refused:
        find_store(None, {}, tmp_path / "project")
    assert refused.value.hint == "name a store: --store a or --store b"
    with pytest.raises(StoreNotFound) as refused:
        find_store(None, {}, tmp_path / "project" / "scripts")
    beside = tmp_path / "project"
    assert refused.value.hint == f"name a store: --store {beside / 'a'} or --store {beside / 'b'}"


def test_a_name_that_is_like_one_beside_it_is_not_told_to_become_a_store(tmp_path: Path) -> None:
    for name in ("e.ck", "other", "others"):
        make(tmp_path / name)

    for named, hint in {
        "ee.ck": "--store e.ck",
        "zzzz": "--store e.ck or --store other or --store others",
        str(tmp_path / "othr"): f"--store {tmp_path / 'other'} or --store {tmp_path / 'others'}",
    }.items():
        with pytest.raises(StoreNotFound) as refused:
            find_store(Path(named), {}, tmp_path)
        assert refused.value.hint == f"use {hint}, or make a new store: ckstore init {named}"


def test_a_hint_reads_no_more_than_a_thousand_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        make(tmp_path / name)
    monkeypatch.setattr("ckstore_cli._place._LISTED_MOST", 2)

    with pytest.raises(StoreNotFound) as refused:
        find_store(None, {}, tmp_path)

    assert refused.value.hint.count("--store") == 2


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


def test_the_directory_of_a_project_is_not_told_to_become_a_store(tmp_path: Path) -> None:
    make(tmp_path / "a project" / ".ckstore")

    with pytest.raises(StoreNotFound) as excinfo:
        find_store(Path("a project"), {}, tmp_path)
    assert excinfo.value.hint == "it contains a store: --store 'a project/.ckstore'"
    with pytest.raises(StoreNotFound) as excinfo:
        Store.open(tmp_path / "a project")
    assert excinfo.value.hint == f"it contains a store: {tmp_path / 'a project' / '.ckstore'}"


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


# ------------------------------------------------------------------------------- stores of other users


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory that any user may write to, with a store in it that another user made."""
    require_root()
    store = make(tmp_path / "project" / ".ckstore")
    for path in (store, store / "store.json"):
        os.chown(path, 70_001, 70_001)
    return store


def test_a_store_of_another_user_is_refused_where_it_was_only_found(foreign: Path) -> None:
    make(foreign.parents[1] / ".ckstore")  # what lies further above is not taken in its place

    with pytest.raises(UnsafePlace) as refused:
        find_store(None, {}, foreign.parent)

    assert f"{foreign} belongs to uid 70001" in refused.value.message
    assert f"export CKSTORE_SAFE_DIRECTORY={foreign}" in refused.value.hint
    assert f"--store {foreign}" in refused.value.hint


def test_a_store_of_another_user_is_not_proposed(foreign: Path) -> None:
    prepared = make(foreign.parent / "theirs")
    os.chown(prepared, 70_001, 70_001)
    (foreign / "store.json").unlink()

    with pytest.raises(StoreNotFound, match="is not in a store") as refused:
        find_store(None, {}, foreign.parent)
    assert "theirs" not in refused.value.hint
    with pytest.raises(UnsafePlace, match=f"{prepared} belongs to uid 70001"):
        find_store(None, {}, prepared)


def test_to_name_a_store_of_another_user_is_consent(foreign: Path) -> None:
    assert find_store(foreign, {}, foreign.parent) == foreign
    assert find_store(None, {"CKSTORE_PATH": str(foreign)}, foreign.parent) == foreign


@given(before=st.lists(st.sampled_from(["", "relative", "/elsewhere", "~"]), max_size=3), after=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(8))
def test_a_store_of_another_user_that_is_listed_as_safe_is_taken(before: list[str], after: bool, foreign: Path) -> None:
    for entry in (str(foreign), f"{foreign}/", f"{foreign.parent}/x/../.ckstore", "*"):
        listed = ":".join([*before, entry, *(["/other"] if after else [])])
        assert find_store(None, {"CKSTORE_SAFE_DIRECTORY": listed}, foreign.parent) == foreign


@pytest.mark.parametrize("entry", ["", ".ckstore", "{parent}", "{store}-2", "{store}*", "**", "/"])
def test_another_entry_makes_no_store_safe(entry: str, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(foreign.parent)
    listed = entry.format(parent=foreign.parent, store=foreign)

    with pytest.raises(UnsafePlace):
        find_store(None, {"CKSTORE_SAFE_DIRECTORY": listed}, foreign.parent)


def test_a_symlink_of_another_user_is_refused_even_to_a_store_of_this_one(tmp_path: Path) -> None:
    require_root()
    mine = make(tmp_path / "mine")
    link = tmp_path / "project" / ".ckstore"
    link.parent.mkdir()
    link.symlink_to(mine)
    assert find_store(None, {}, link.parent) == link

    os.chown(link, 70_001, 70_001, follow_symlinks=False)
    for listed in ("", str(mine)):  # a safe store is not one to be led to
        with pytest.raises(UnsafePlace, match=r"\.ckstore belongs to uid 70001"):
            find_store(None, {"CKSTORE_SAFE_DIRECTORY": listed}, link.parent)
    assert find_store(None, {"CKSTORE_SAFE_DIRECTORY": str(link)}, link.parent) == link


def test_a_symlink_of_this_user_to_a_store_of_another_one_is_refused(foreign: Path, tmp_path: Path) -> None:
    link = tmp_path / "here" / ".ckstore"
    link.parent.mkdir()
    link.symlink_to(foreign)

    with pytest.raises(UnsafePlace, match="belongs to uid 70001"):
        find_store(None, {}, link.parent)


def test_root_takes_the_stores_of_the_user_who_called_sudo(foreign: Path) -> None:
    assert find_store(None, {"SUDO_UID": "70001"}, foreign.parent) == foreign
    for other in ("70002", "", "x", "-1"):
        with pytest.raises(UnsafePlace):
            find_store(None, {"SUDO_UID": other}, foreign.parent)


def test_what_another_user_leaves_is_neither_taken_nor_a_raw_error() -> None:
    """SUDO_UID counts for root alone; a store that this user may not look into is refused by the same error."""
    with common_folder() as folder:
        someone, other = users(folder)
        project = folder / "project"
        project.mkdir()
        project.chmod(0o1777)
        assert other.ckstore("init", project / ".ckstore").returncode == 0
        environments: list[dict[str, str]] = [{}, {"SUDO_UID": str(other.uid)}]
        for environment in environments:
            refused = someone.ckstore("log", cwd=project, **environment)
            assert refused.returncode == 1
            assert f"error: {project}/.ckstore belongs to uid {other.uid}" in refused.stderr
            assert f"uid {someone.uid}" in refused.stderr
        assert other.ckstore("log", cwd=project).returncode == 0
