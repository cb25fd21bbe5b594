"""No message, page, docstring or comment has a word of `plain_english.txt`, the list of what stops a native reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("plain_english.txt")
ROOMS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "ckstore", "cli", "migrations", "tests")
SUFFIXES = {".md", ".py", ".txt", ".yml"}

# Files and folders that may quote such words, with why.
ALLOWED = {
    "tests/docs/plain_english.txt": "the list",
    "tests/docs/test_plain_english.py": "tries the list",
    "tests/tools/names.py": "lists words that are no names",
    "tests/tools/prose.py": "lists habits",
    "tests/tools/test_prose.py": "tries them",
}
# What is read as a space: line ends, with the sign of a comment or a quote that follows, and the underscores of a name.
BETWEEN = re.compile(r"\n\s*(?:#:?|>|//)?\s*|_|\s+")


class Found(NamedTuple):
    """Where a text has a word of the list."""

    line: int
    words: str
    advice: str


def rules() -> list[tuple[re.Pattern[str], str]]:
    """Return each pattern of the list with the advice."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" => ", 1) for line in lines if line and not line.startswith("#")]
    return [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in pairs]


RULES = rules()
_AT_A_WORD = [pattern.pattern.removeprefix(r"\b") for pattern, _ in RULES if pattern.pattern.startswith(r"\b")]
_ELSEWHERE = [pattern.pattern for pattern, _ in RULES if not pattern.pattern.startswith(r"\b")]
# All of the list at once: to look for each alone in texts that have nothing of it takes four times as long.
ANY = re.compile("|".join([rf"\b(?:{'|'.join(_AT_A_WORD)})", *_ELSEWHERE]), re.IGNORECASE)


def find(text: str) -> list[Found]:
    """Return what of the list a text has."""
    if ANY.search(BETWEEN.sub(" ", text)) is None:
        return []
    plain, starts, at = [], [], 0  # the text as it is searched; where its parts begin, there and in `text`
    length = 0
    for between in BETWEEN.finditer(text):
        plain += [text[at : between.start()], " "]
        starts.append((length, at))
        length += between.start() - at + 1
        at = between.end()
    plain.append(text[at:])
    starts.append((length, at))
    searched = "".join(plain)
    found = []
    for pattern, advice in RULES:
        for match in pattern.finditer(searched):
            here, there = max(start for start in starts if start[0] <= match.start())
            found.append(Found(text.count("\n", 0, there + match.start() - here) + 1, match[0], advice))
    return sorted(found)


def pages() -> list[Path]:
    """Return the files that hold the list."""
    tops = [ROOT / room for room in ROOMS]
    files = [path for top in tops for path in (sorted(top.rglob("*")) if top.is_dir() else [top])]
    return [path for path in files if path.suffix in SUFFIXES and not may_quote(path)]


def may_quote(path: Path) -> bool:
    """Whether a file is allowed to have such words."""
    inside = path.relative_to(ROOT).as_posix()
    return any(inside == name or inside.startswith(f"{name}/") for name in ALLOWED)


def test_no_text_has_a_word_that_stops_a_native_reader() -> None:
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in pages()}

    assert len(texts) > 500
    assert [f"{path}:{f.line}: {f.words!r}: {f.advice}" for path, text in texts.items() for f in find(text)] == []


def test_what_may_quote_such_words_is_there() -> None:
    assert [name for name in ALLOWED if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Nobody has it.", [(1, "Nobody")]),
        ("one\n    # two: the catalog is made\n    # anew by it", [(3, "anew")]),
        ("def test_somebody_else() -> None: ...", [(1, "somebody")]),
        ("it is gone\non with", [(1, "gone on with")]),
        ("An argument cannot be.\nWhoever", [(1, "cannot be."), (2, "Whoever")]),
        ("It cannot be read. Anewly, a snowbody.", []),
    ],
)
def test_the_list_is_searched_across_lines_and_in_names(text: str, expected: list[tuple[int, str]]) -> None:
    assert [(found.line, found.words) for found in find(text)] == expected
