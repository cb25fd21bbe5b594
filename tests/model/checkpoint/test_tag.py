"""The text of a tag: it leads to its checkpoint, and no harm to it names another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckstore.model.checkpoint.tag import TagTarget, parse_tag, tag_text
from ckstore.model.names import MAX_STEP, is_run

RUNS = st.from_regex(r"[A-Za-z0-9._-]{1,100}", fullmatch=True).filter(is_run)
STEPS = st.integers(0, MAX_STEP)


@given(run=RUNS, step=STEPS)
def test_the_text_of_a_tag_names_its_checkpoint(run: str, step: int) -> None:
    assert parse_tag(tag_text(run, step)) == TagTarget(run, step, twice=True)
    assert parse_tag(f"../checkpoints/{run}/{step}") == TagTarget(run, step, twice=False)


@given(run=RUNS, step=STEPS, draw=st.data())
@example(run="main", step=0, draw=None)
def test_no_flipped_bit_makes_a_tag_name_another_checkpoint(run: str, step: int, draw: st.DataObject | None) -> None:
    text = os.fsencode(tag_text(run, step))
    bits = range(8 * len(text)) if draw is None else [draw.draw(st.integers(0, 8 * len(text) - 1))]
    for bit in bits:
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8

        assert parse_tag(os.fsdecode(bytes(flipped))) is None


@given(run=RUNS, step=STEPS, draw=st.data())
def test_neither_a_beginning_nor_an_end_of_the_text_is_a_tag(run: str, step: int, draw: st.DataObject) -> None:
    text = tag_text(run, step)
    length = draw.draw(st.integers(0, len(text) - 1))

    assert parse_tag(text[:length]) is None
    assert parse_tag(text[-length:] if length else "") is None


@given(text=st.text(st.sampled_from("./mainchekpots012"), max_size=60))
def test_whatever_the_text_is_a_tag_names_a_place_in_the_store(text: str) -> None:
    found = parse_tag(text)

    assert found is None or (is_run(found.run) and 0 <= found.step <= MAX_STEP)


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
        "",
    ],
)
def test_other_texts_are_no_tags(text: str) -> None:
    assert parse_tag(text) is None


def test_the_way_in_the_text_leads_to_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "main" / "12").mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "best").symlink_to(tag_text("main", 12))

    assert (tmp_path / "refs" / "best").resolve() == (tmp_path / "checkpoints" / "main" / "12").resolve()
