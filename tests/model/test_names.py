"""Names of leaves are injective; runs, steps and tags have one form."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.checkpoint.refs import parse_ref
from ckstore.model.names import (
    MAX_STEP,
    CheckpointKey,
    DirectoryName,
    check_run,
    check_step,
    check_tag,
    directory_of,
    join_index,
    join_key,
    key_of,
    parse_directory,
    plain,
    spelled,
    spellings,
)

paths = st.lists(
    st.text(st.characters(codec=None), max_size=5) | st.text(".\\[]0a", max_size=5) | st.integers(-(10**20), 10**20),
    max_size=6,
)


def _name(path: list[str | int]) -> str:
    name = ""
    for key in path:
        name = join_key(name, key) if isinstance(key, str) else join_index(name, key)
    return name


def _path(name: str) -> list[str | int]:
    r"""Read a name back: `[n]` is an index, `\` makes what follows a letter, `\0` is the empty key."""
    path: list[str | int] = []
    token = re.compile(r"\[(-?\d+)\]|\.?((?:\\.|[^\\.\[\]])+)", re.DOTALL)
    at = 0
    while at < len(name):
        match = token.match(name, at)
        assert match is not None, (name, at)
        at = match.end()
        if match[1] is not None:
            path.append(int(match[1]))
        else:
            path.append("" if match[2] == "\\0" else re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL))
    return path


@given(path=paths)
def test_a_name_gives_back_its_path(path: list[str | int]) -> None:
    assert _path(_name(path)) == path


@given(one=paths, other=paths)
def test_two_paths_have_two_names(one: list[str | int], other: list[str | int]) -> None:
    assert (_name(one) == _name(other)) == (one == other)


@pytest.mark.parametrize(
    "path, name",
    [
        ([], ""),
        (["a", "b"], "a.b"),
        (["a.b"], "a\\.b"),
        (["model", "layers", 0, "weight"], "model.layers[0].weight"),
        (["", ""], "\\0.\\0"),
        (["[0]"], "\\[0\\]"),
        (["\\0"], "\\\\0"),
        ([0, -1, "x"], "[0][-1].x"),
    ],
)
def test_names_are_as_the_page_says(path: list[str | int], name: str) -> None:
    assert _name(path) == name


@pytest.mark.parametrize("run", ["a", "main", "a.b-c_d", "...", "-", "x" * 100, "100", "latest"])
def test_run_names(run: str) -> None:
    assert check_run(run) == run


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "a b", "a@b", "é", "x" * 101, "a\n", None, 3])
def test_other_run_names_are_refused_with_the_rule(run: object) -> None:
    with pytest.raises(BadInput, match=r"a run name has 1 to 100 of the characters .*, got "):
        check_run(run)


@pytest.mark.parametrize("step", [-1, 2**53 + 1, 1.0, "1", True, None])
def test_other_steps_are_refused(step: object) -> None:
    with pytest.raises(BadInput, match=r"a step is an integer from 0 to 2\^53, got "):
        check_step(step)


def test_the_greatest_step_is_two_to_the_53() -> None:
    assert check_step(2**53) == 2**53


@given(text=st.text("0123456789abcdefABCDEFxhlatestvid-._gG@ ", max_size=12) | st.text(max_size=5))
def test_what_may_be_a_tag_is_read_as_that_tag_and_nothing_else(text: str) -> None:
    try:
        check_tag(text)
    except BadInput:
        is_tag = False
    else:
        is_tag = True
    try:
        ref = parse_ref(text)
    except BadInput:
        read_as_tag = False
    else:
        read_as_tag = ref.kind == "tag" and ref.run is None and ref.value == text

    assert is_tag == read_as_tag


@pytest.mark.parametrize(
    "tag, looks_like",
    [
        ("12", "a step"),
        ("latest", "a ref that is computed"),
        ("latest-valid", "a ref that is computed"),
        ("c0ffee", "an id"),
        ("C0FFEE12", "an id"),
        ("xxh3-c0ffee", "an id"),
        ("blake3-c0ffee", "an id"),
    ],
)
def test_a_tag_may_not_look_like_another_kind_of_ref(tag: str, looks_like: str) -> None:
    with pytest.raises(BadInput, match=f"a tag may not look like {looks_like}, got '{tag}'"):
        check_tag(tag)


@pytest.mark.parametrize("tag", [".hidden", "", "a/b", "a@b", "x" * 101, None])
def test_other_tags_are_refused(tag: object) -> None:
    with pytest.raises(BadInput, match=r"a tag has 1 to 100 .* does not start with a dot, got "):
        check_tag(tag)


@given(several=st.lists(paths, max_size=8))
def test_no_two_names_have_one_spelling_and_only_those_that_need_it_keep_backslashes(
    several: list[list[str | int]],
) -> None:
    names = list(dict.fromkeys(map(_name, several)))
    told = spellings(names)

    assert list(told) == names
    assert len(set(told.values())) == len(names)
    for name, written in told.items():
        alike = [other for other in names if other != name and plain(name) in (other, plain(other))]
        assert written == (name if alike else plain(name))
    assert spelled(reversed(names)) == [told[name] for name in reversed(names)]


@pytest.mark.parametrize(
    "names,written",
    [
        (["model.0\\.weight", "model.1"], ["model.0.weight", "model.1"]),
        (["a.b", "a\\.b", "c\\.d"], ["a.b", "a\\.b", "c.d"]),
        (["a.b", "a\\.b", "a\\\\\\.b"], ["a.b", "a\\.b", "a\\\\\\.b"]),
    ],
)
def test_a_name_is_written_as_people_type_it(names: list[str], written: list[str]) -> None:
    assert spelled(names) == written


@given(st.text(alphabet="a.[]\\", max_size=12))
def test_a_backslash_goes_and_what_is_behind_it_stays(text: str) -> None:
    assert plain(text) == re.sub(r"\\(.)", r"\1", text)


IDS = st.from_regex(r"xxh3-[0-9a-f]{32}|blake3-[0-9a-f]{64}", fullmatch=True)
GENERATIONS = st.integers(0, 3) | st.integers(0, 999_999)


@given(step=st.integers(0, MAX_STEP), id=IDS, digit_count=st.integers(10, 64), generation=GENERATIONS)
def test_the_name_of_a_directory_says_step_id_and_generation(
    step: int, id: str, digit_count: int, generation: int
) -> None:
    name = directory_of(step, id, digit_count=digit_count, generation=generation)
    key = key_of("main", name)

    digits = id.partition("-")[2][:digit_count]
    assert parse_directory(name) == DirectoryName(step, digits, generation)
    assert key == CheckpointKey("main", step, name)
    assert key.fits("main", step, id)
    assert (key.generation, key.is_draft) == (generation, False)
    assert key.any_generation == CheckpointKey("main", step, directory_of(step, id, digit_count=digit_count))


@given(step=st.integers(0, MAX_STEP), one=IDS, other=IDS)
def test_a_name_fits_no_other_run_step_or_id(step: int, one: str, other: str) -> None:
    key = CheckpointKey("main", step, directory_of(step, one))

    assert not key.fits("side", step, one)
    assert not key.fits("main", step + 1, one)
    assert key.fits("main", step, other) == (one.partition("-")[2][:10] == other.partition("-")[2][:10])


@given(step=st.integers(0, MAX_STEP), id=IDS)
def test_the_name_of_a_draft_is_the_step_alone_and_fits_any_id(step: int, id: str) -> None:
    key = key_of("main", str(step))

    assert key == CheckpointKey("main", step, str(step))
    assert key.is_draft
    assert key.any_generation == key
    assert key.fits("main", step, id)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "x",
            "-1",
            "01",
            "1.",
            "1.1",
            ".1",
            ".hidden",
            "manifest.json",
            str(MAX_STEP + 1),
            "99999999999999999999",
        ),
        *("1.012345678", "1.012345678g", "1.012345678A", f"1.{'0' * 65}", "1.xxh3-0123456789", "1.0123456789."),
        *(
            "1.0123456789.0",
            "1.0123456789.01",
            "1.0123456789.a",
            "1.0123456789.1.1",
            "1.0123456789\n",
            "1\n",
            "01.0123456789",
        ),
        "1.0123456789.1000000",
    ],
)
def test_other_names_are_no_directories_of_checkpoints(name: str) -> None:
    assert parse_directory(name) is None
    assert key_of("main", name) is None
