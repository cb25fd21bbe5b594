"""The text of a tag: it leads to its checkpoint, and no harm to it names another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckstore.model.checkpoint.tag import TagTarget, parse_tag, tag_text
from ckstore.model.names import MAX_STEP, CheckpointKey, directory_of, is_run

RUNS = st.from_regex(r"[A-Za-z0-9._-]{1,100}", fullmatch=True).filter(is_run)
STEPS = st.integers(0, MAX_STEP)
IDS = st.from_regex(r"xxh3-[0-9a-f]{32}|blake3-[0-9a-f]{64}", fullmatch=True)


@st.composite
def keys(draw: st.DrawFn) -> CheckpointKey:
    """Draw a place as this ckstore names it, as another could with more digits, or as a draft does."""
    step, generation = draw(STEPS), draw(st.integers(0, 2) | st.integers(0, 999_999))
    name = directory_of(step, draw(IDS), digit_count=draw(st.sampled_from([10, 10, 11, 32])), generation=generation)
    return CheckpointKey(draw(RUNS), step, draw(st.sampled_from([name, name, str(step)])))


@given(key=keys())
def test_the_text_of_a_tag_names_its_checkpoint(key: CheckpointKey) -> None:
    assert parse_tag(tag_text(key)) == TagTarget(key, twice=True)
    assert parse_tag(f"../checkpoints/{key.run}/{key.directory}") == TagTarget(key, twice=False)


@given(key=keys(), draw=st.data())
@example(key=CheckpointKey("main", 0, "0.0123456789.1"), draw=None)
@example(key=CheckpointKey("main", 0, "0"), draw=None)
def test_no_flipped_bit_makes_a_tag_name_another_checkpoint(key: CheckpointKey, draw: st.DataObject | None) -> None:
    text = os.fsencode(tag_text(key))
    bits = range(8 * len(text)) if draw is None else [draw.draw(st.integers(0, 8 * len(text) - 1))]
    for bit in bits:
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8

        assert parse_tag(os.fsdecode(bytes(flipped))) is None


@given(key=keys(), draw=st.data())
def test_neither_a_beginning_nor_an_end_of_the_text_is_a_tag(key: CheckpointKey, draw: st.DataObject) -> None:
    text = tag_text(key)
    length = draw.draw(st.integers(0, len(text) - 1))

    assert parse_tag(text[:length]) is None
    assert parse_tag(text[-length:] if length else "") is None


@given(text=st.text(st.sampled_from("./mainchekpots012"), max_size=80))
def test_whatever_the_text_is_a_tag_names_a_place_in_the_store(text: str) -> None:
    found = parse_tag(text)

    assert found is None or (is_run(found.key.run) and 0 <= found.key.step <= MAX_STEP)
    assert found is None or found.key.directory.partition(".")[0] == str(found.key.step)


@pytest.mark.parametrize(
    "text",
    [
        "../checkpoints/main/../mine/1/../1",
        "../checkpoints/main/../main/1/../01",
        "../checkpoints/main/../main/01/../01",
        "../checkpoints/../../../1/../1",
        "../checkpoints/main/../main/1/../1/",
        "../checkpoints/main/../main/1/../1\n",
        "/checkpoints/main/../main/1/../1",
        f"../checkpoints/main/{MAX_STEP + 1}",
        "../checkpoints/main/99999999999999999999",
        "../checkpoints/main/../main/1.0123456789/../1.0123456788",
        "../checkpoints/main/../main/1.0123456789/../1.0123456789.1",
        "../checkpoints/main/../main/1.012345678/../1.012345678",
        "../checkpoints/main/../main/1.012345678A/../1.012345678A",
        "../checkpoints/main/../main/1.0123456789.0/../1.0123456789.0",
        "../checkpoints/main/../main/1.0123456789.01/../1.0123456789.01",
        "../checkpoints/main/../main/1.1/../1.1",
        "",
    ],
)
def test_other_texts_are_no_tags(text: str) -> None:
    assert parse_tag(text) is None


def test_the_way_in_the_text_leads_to_the_checkpoint(tmp_path: Path) -> None:
    key = CheckpointKey("main", 12, "12.0123456789.3")
    place = tmp_path / "checkpoints" / key.run / key.directory
    place.mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "best").symlink_to(tag_text(key))

    assert (tmp_path / "refs" / "best").resolve() == place.resolve()
