"""Find the habits of prose that a reader stumbles over: ``python -m tests.tools.prose [--write] [FILE…]``.

CONTRIBUTING.md lists the habits. Checked are Markdown, and docstrings, help texts and messages of the shipped code.
Without arguments, the hits of each file are compared with ``prose_baseline.txt``: a file with more hits fails, and so
does one with fewer, until ``--write`` lowers its number. With files, every hit in them is listed.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASELINE = "tests/tools/prose_baseline.txt"
SOURCES = ("ckstore", "cli", "migrations", "examples")
PAGES = ("*.md", "docs/**/*.md")
EXCEPT = ("CHANGELOG.md",)
"""What was released is not rewritten."""

_HABITS = (
    (
        "a clause as a noun",
        (
            r"(?:^|(?<=[.:;(] ))(?:What|Who|That which)\s+(?:is|are|was|were|has|have|had|it|they|a|an|the|no|nothing"
            r"|others|this|one|may|looks?|reads?|saves?|gets?|keeps?|needs?)\b(?![^.]*\?)"
        ),
    ),
    (
        "a clause as a noun",
        (
            r"\b(?:of|by|for|with|from|and|or|than|says?|keeps?|frees?|drops?|names?|reads?|knows?|asks?|lists?"
            r"|returns?) (?:what|who) (?:is|was|were|are|it|they|has|had|no|nothing|others|the|a|this|that|looks?"
            r"|reads?|killed)\b"
        ),
    ),
    (
        "a clause as a noun",
        r"(?i)\bwhat (?:is|was) (?:there|here)\b|\bwhat (?:no|nothing)\b|\bwhat (?:comes|follows)\b",
    ),
    (
        "pointing in place of naming",
        r"(?i)\b(?:is there already|by now|by then|there is of|has by now|elsewhere|beside (?:it|them|that|this))\b",
    ),
    (
        "a verb of moving or saying",
        (
            r"(?i)\b(?:let(?:s|ting)? go of|gives? back|given back|brings? back|brought back|goes too"
            r"|go(?:es)? on (?:after|from)|says? of|is told|are told|was told|told (?:of|by|to)|had in time"
            r"|bring (?:the|a|some|what)|took the place|comes? along|comes? (?:back|after it))\b"
        ),
    ),
    ("a colon as a verb", r"\b(?:None|True|False): [a-z]"),
    ("a chain of clauses", r"(?:^[\w*, ]{1,40}: |^|(?<=[.!?] ))[^.!?;:]+(?:[;:] [^.!?;:]+){2,}"),
    (
        "the topic in front",
        r"(?:^|(?<=[.:;] ))(?:Of|From|With) (?:a|an|the|each|those|these|that|it|them)\b[^.,:]{0,60}[:,] ",
    ),
    (
        "emphasis at the end",
        r", too(?=[.;:)]|$)|\b(?:alone|as well)(?=[.;:)]|$)|\bso many\b|\bso long\b|\belse the\b|\bat most so\b",
    ),
    (
        "passive perception",
        (
            r"\b(?:was|were|is|are|been|be) (?:seen|found|said|meant|wanted|asked for|looked at|begun|gone)\b"
            r"|\bturned out to\b"
        ),
    ),
    ("an odd word", r"(?i)\b(?:somebody|whoever|nobody|anew|is none|are none|that which|wherefrom|thereby|withal)\b"),
)
HABITS = tuple((name, re.compile(pattern)) for name, pattern in _HABITS)
OPENING = (
    "a first line without an object",
    re.compile(r"(?:Be|Bring|Come|Give|Go|Have|Know|Let|Look|Say|Take|Tell)\b"),
)
"""A habit of the first line of a docstring only."""

_CODE = re.compile(r"(`{1,2})(?!`)(.+?)\1")
_DIRECTIVE = re.compile(r"^::: .*(?:\n[ \t]+\S.*)*", re.MULTILINE)
"""A line of a page that inserts docstrings, with its options."""
_COMMENT = re.compile(r"<!--.*?-->")
_WORDS = re.compile(r"[A-Za-z]{2,}[ ,;:]+[a-z]{2,}[ ,;:]+[a-z]+")
_SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields|Example|Examples|Note|Notes):$")
_ITEM = re.compile(r"^(?:[-*+>] |\d+[.)] |#+ |\*{0,2}\w+(?:, \w+)*: )")


@dataclass(frozen=True)
class Hit:
    """A place to rewrite."""

    file: str
    line: int
    habit: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.habit}: {self.text}"


@dataclass(frozen=True)
class Paragraph:
    """Prose of a file, and the line that it begins on."""

    line: int
    text: str
    is_opening: bool = False


def hits(file: str, text: str) -> list[Hit]:
    """Return the habits in a Markdown page or a module."""
    paragraphs = markdown(text) if file.endswith(".md") else python(text)
    return [Hit(file, paragraph.line, *found) for paragraph in paragraphs for found in _habits_in(paragraph)]


def markdown(text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs, items, headings and cells of a page without its code and directives."""
    lines: list[tuple[int, str]] = []
    fence = ""
    for number, line in enumerate(_DIRECTIVE.sub(_blank, text).splitlines(), 1):
        bare = _COMMENT.sub("", line).strip()
        mark = re.match(r"`{3,}|~{3,}", bare)
        if fence or mark:
            if not fence and mark:
                fence = mark[0]
            elif bare.startswith(fence):
                fence = ""
            lines.append((number, ""))
        elif bare.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", bare):
                lines += [(number, ""), (number, cell.strip()), (number, "")]
        else:
            lines.append((number, bare))
    yield from _paragraphs(lines)


def _blank(directive: re.Match[str]) -> str:
    return "\n" * directive[0].count("\n")


def python(text: str) -> Iterator[Paragraph]:
    """Give the paragraphs of the docstrings, and the strings that hold a sentence."""
    tree = ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))
            first = node.value.lineno
            lines = list(enumerate(node.value.value.splitlines(), first))
            for at, paragraph in enumerate(_paragraphs(lines)):
                yield Paragraph(paragraph.line, paragraph.text, is_opening=not at)
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield from _message(node.lineno, "".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | docstrings:
            yield from _message(node.lineno, node.value)


def _part(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "X"


def _message(line: int, text: str) -> Iterator[Paragraph]:
    if _WORDS.search(text):
        yield from (Paragraph(line, paragraph.text) for paragraph in _paragraphs(list(enumerate(text.splitlines()))))


def _paragraphs(lines: list[tuple[int, str]]) -> Iterator[Paragraph]:
    """Join lines to paragraphs; an item of a list or of a docstring's section is one of its own."""
    begin, parts = 0, list[str]()
    for number, line in [*lines, (0, "")]:
        bare = line.strip()
        if parts and (not bare or _SECTION.match(bare) or _ITEM.match(bare)):
            yield Paragraph(begin, " ".join(parts))
            parts = []
        if bare and not _SECTION.match(bare) and not bare.startswith((">>>", "$ ")):
            begin = begin if parts else number
            parts.append(re.sub(r"^(?:[-*+>] |\d+[.)] |#+ )", "", bare))


def _habits_in(paragraph: Paragraph) -> Iterator[tuple[str, str]]:
    text = _CODE.sub(lambda code: code[2] if code[2] in {"None", "True", "False"} else "X", paragraph.text)
    name, opening = OPENING
    if paragraph.is_opening and opening.match(text):
        yield name, text[:80]
    for name, pattern in HABITS:
        for found in pattern.finditer(text):
            yield name, text[max(found.start() - 20, 0) : found.start() + 80].strip()


def files(root: Path) -> Iterator[str]:
    """Give the files whose prose is checked."""
    for source in SOURCES:
        yield from (path.relative_to(root).as_posix() for path in sorted((root / source).rglob("*.py")))
    pages = {path.relative_to(root).as_posix() for pattern in PAGES for path in root.glob(pattern)}
    yield from sorted(pages.difference(EXCEPT))


def check(root: Path) -> list[Hit]:
    """Return the hits in all files that are checked."""
    return [hit for file in files(root) for hit in hits(file, (root / file).read_text(encoding="utf-8"))]


def read_baseline(text: str) -> dict[str, int]:
    """Return how many hits each file may have."""
    return {file: int(count) for count, file in (line.split(maxsplit=1) for line in text.splitlines())}


def baseline_text(counts: dict[str, int]) -> str:
    """Return the text that `read_baseline` reads."""
    return "".join(f"{count} {file}\n" for file, count in sorted(counts.items()) if count)


def compare(found: Iterable[Hit], allowed: dict[str, int]) -> Iterator[str]:
    """Give a line for each hit in a file with more than it may have, and for each file that has fewer."""
    by_file: dict[str, list[Hit]] = {}
    for hit in found:
        by_file.setdefault(hit.file, []).append(hit)
    for file in sorted({*by_file, *allowed}):
        count, most = len(by_file.get(file, [])), allowed.get(file, 0)
        if count > most:
            yield from map(str, by_file[file])
            yield f"{file}: {count} hits, at most {most} allowed; rewrite the sentences that are new"
        elif count < most:
            yield f"{file}: {count} hits, {BASELINE} allows {most}; lower it: python -m tests.tools.prose --write"


def lowered(found: Iterable[Hit], allowed: dict[str, int] | None) -> dict[str, int]:
    """Return a baseline with the numbers of today where they are lower; without one, those of today."""
    counts = Counter(hit.file for hit in found)
    return dict(counts) if allowed is None else {file: min(counts[file], most) for file, most in allowed.items()}


def main(arguments: list[str]) -> int:
    """Check, list or write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="lower the baseline to the hits of today")
    parser.add_argument("files", nargs="*", help="list every hit in these files")
    options = parser.parse_args(arguments)
    if options.files:
        listed = [hit for file in options.files for hit in hits(file, Path(file).read_text(encoding="utf-8"))]
        sys.stdout.writelines(f"{hit}\n" for hit in listed)
        return 1 if listed else 0
    path = ROOT / BASELINE
    found = check(ROOT)
    allowed = read_baseline(path.read_text(encoding="utf-8")) if path.exists() else None
    if options.write:
        path.write_text(baseline_text(lowered(found, allowed)), encoding="utf-8")
        return 0
    problems = list(compare(found, allowed or {}))
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
