"""What docs/format/v1.md says about config.json, pins and annotations is what the code writes and reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore.errors import BadInput, NewerFormat
from ckstore.model.checkpoint.annotations import parse_annotations
from ckstore.model.checkpoint.pins import parse_pin
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.settings import parse_config, render_config

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "v1.md").read_text("utf-8")


def section(title: str) -> str:
    match = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def example(title: str) -> bytes:
    match = re.search(r"^```json\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1].encode("ascii")


def members(title: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]*`) \|", section(title), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_example_of_config_json_is_one_and_its_policy_can_be_applied() -> None:
    config = parse_config(example("config.json"), "the page")

    assert json.loads(render_config(config)) == json.loads(example("config.json"))
    assert RetentionPolicy.from_json(config["retention"], "the page").to_json() == config["retention"]


def test_the_table_of_retention_names_exactly_the_rules() -> None:
    assert members("config.json") - {"retention"} == set(RetentionPolicy.__dataclass_fields__)


def test_the_example_of_a_pin_is_one_with_all_its_members() -> None:
    pin = parse_pin("a", example("Pins"), "the page")

    assert json.loads(pin.render()) == json.loads(example("Pins"))
    assert members("Pins") == set(json.loads(example("Pins")))


def test_the_example_of_annotations_is_one_with_all_its_members() -> None:
    annotations = parse_annotations(example("annotations.json"), "the page")

    assert json.loads(annotations.render()) == json.loads(example("annotations.json"))
    assert members("annotations.json") == set(json.loads(example("annotations.json")))


@pytest.mark.parametrize(
    "member,value,said",
    [
        ("format", "ckstore-config", "format"),
        ("version", 0, "version"),
        ("run", "a/b", "run name"),
        ("step", -1, "step"),
        ("step", "1", "step"),
        ("id", "abc", "id"),
        ("reason", None, "reason"),
        ("created", "yesterday", "created"),
        ("expires", "2026-13-01T00:00:00.000000Z", "expires"),
        ("expires", 3, "expires"),
    ],
)
def test_a_pin_with_a_wrong_member_is_refused(member: str, value: object, said: str) -> None:
    data = json.dumps({**json.loads(example("Pins")), member: value}).encode()

    with pytest.raises(BadInput, match=rf"^the page.*{said}"):
        parse_pin("a", data, "the page")


@pytest.mark.parametrize(
    "member,value",
    [
        ("format", "ckstore-pin"),
        ("version", "1"),
        ("metrics", []),
        ("metrics", {"loss": "big"}),
        ("metrics", {"loss": True}),
        ("notes", None),
        ("notes", ["text"]),
        ("notes", [{"created": "2026-11-22T10:00:00.000000Z"}]),
        ("notes", [{"created": "now", "text": "a"}]),
    ],
)
def test_annotations_with_a_wrong_member_are_refused(member: str, value: object) -> None:
    data = json.dumps({**json.loads(example("annotations.json")), member: value}).encode()

    with pytest.raises(BadInput, match=r"^the page"):
        parse_annotations(data, "the page")


@pytest.mark.parametrize(
    "title,parse",
    [
        ("config.json", parse_config),
        ("Pins", lambda data, where: parse_pin("a", data, where)),
        ("annotations.json", parse_annotations),
    ],
)
def test_what_a_newer_version_wrote_is_refused_as_such(title: str, parse: Callable[[bytes, str], object]) -> None:
    data = json.dumps({**json.loads(example(title)), "version": 2}).encode()

    with pytest.raises(NewerFormat):
        parse(data, "the page")
