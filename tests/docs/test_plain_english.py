"""No message, page, docstring or comment has a word of `plain_english.txt`, the list of what stops a native reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("plain_english.txt")
ROOMS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "cli", "migrations")
SUFFIXES = {".md", ".py", ".txt", ".yml"}

# Pages that quote such words, with why: a path or a folder below the root.
ALLOWED = {
    "docs/changelog.d": "notes of what was, edited into the changelog at a release",
    "docs/reliability-mutants.md": "names of tests, written by a program",
}
BETWEEN = re.compile(r"_|\n\s*(?:#:?|>|//)?\s*|\s+")


def rules() -> list[tuple[re.Pattern[str], str]]:
    """Return each pattern of the list with the advice."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pairs = [line.split(" => ", 1) for line in lines]
    return [(re.compile(pattern.strip(), re.IGNORECASE), advice) for pattern, advice in pairs]


def found(text: str) -> list[str]:
    """Return what of the list a text has, with where and the advice."""
    starts: list[int] = []  # of each character of the text as it is searched, in the text as it is
    searched: list[str] = []
    at = 0
    for between in [*BETWEEN.finditer(text), None]:
        end = len(text) if between is None else between.start()
        searched.append(text[at:end])
        starts += range(at, end)
        if between is not None:
            searched.append(" ")
            starts.append(end)
            at = between.end()
    plain = "".join(searched)
    return [
        f"line {text.count(chr(10), 0, starts[match.start()]) + 1}: {match[0]!r}: {advice}"
        for pattern, advice in rules()
        for match in pattern.finditer(plain)
    ]


def pages() -> list[Path]:
    """Return the files of the rooms that hold the list."""
    files = [
        path
        for room in ROOMS
        for path in (sorted((ROOT / room).rglob("*")) if (ROOT / room).is_dir() else [ROOT / room])
    ]
    return [path for path in files if path.suffix in SUFFIXES and not is_allowed(path)]


def is_allowed(path: Path) -> bool:
    inside = path.relative_to(ROOT).as_posix()
    return path == LIST or any(inside == name or inside.startswith(f"{name}/") for name in ALLOWED)


def test_no_page_has_a_word_that_stops_a_native_reader() -> None:
    assert len(pages()) > 50
    assert [f"{path.relative_to(ROOT)}: {what}" for path in pages() for what in found(path.read_text("utf-8"))] == []


def test_what_may_quote_such_words_is_there() -> None:
    assert [name for name in ALLOWED if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Nobody has it.", ["line 1: 'Nobody'"]),
        ("one\n    # two: the catalog is made\n    # anew by it", ["line 3: 'anew'"]),
        ("def test_somebody_else() -> None: ...", ["line 1: 'somebody'"]),
        ("it is gone\non with", ["line 1: 'gone on with'"]),
        ("An argument cannot be.", ["line 1: 'cannot be.'"]),
        ("It cannot be read. Anewly, a snowbody.", []),
    ],
)
def test_the_list_is_searched_across_lines_and_in_names(text: str, expected: list[str]) -> None:
    assert [what.rsplit(": ", 1)[0] for what in found(text)] == expected or [
        re.sub(r"(: '[^']*').*", r"\1", what) for what in found(text)
    ] == expected
