"""What a mutant is."""

from __future__ import annotations

import re
import tokenize
from dataclasses import dataclass

from tests.mutants.finding import definitions

_LAW = "tests/faults/test_trace_law.py::test_an_act_keeps_every_law"


@dataclass(frozen=True)
class Mutant:
    """The code without a guard.

    Attributes:
        guard: The removed guard, as a row of docs/reliability-mutants.md.
        name: Tells it from the others; letters, digits and dashes.
        where: The function, class, constant or module that changes: see `tests.mutants.finding`.
        old: What changes in it: whole lines, however far they are indented, or a part of a line. It occurs once in all
            that has the name. Comments are ignored, here and in the code.
        new: What stands there instead.
        caught_by: The test that fails.
        says: What is in its output when it fails for that reason: a law, or words of an assertion.
        failing_sync: The fsync of the act that fails; 0: none.
    """

    guard: str
    name: str
    where: str
    old: str
    new: str
    caught_by: str
    says: str
    failing_sync: int = 0

    @property
    def act(self) -> str:
        """The act that breaks the law; empty if the law does not catch it."""
        return self.caught_by.partition("[")[2].rstrip("]") if self.caught_by.startswith(_LAW) else ""

    @property
    def file(self) -> str:
        """The file that changes, relative to the package ``ckstore``. Raises as `changed`."""
        return self.changed()[0]

    def changed(self) -> tuple[str, str]:
        """Return the file that changes, relative to the package, and its sources without the guard.

        Raises:
            ValueError: The text is not there, or not once: the guard is another one, and the mutant must follow.
        """
        found = []
        for place in definitions(self.where):
            lines = place.sources()
            before, after = lines[: place.begin], lines[place.end :]
            inside = without_comments(lines)[place.begin : place.end]
            change = self._lines_changed if self.old.endswith("\n") else self._part_changed
            found += [(place.file, "".join([*before, *changed, *after])) for changed in change(inside)]
        if len(found) != 1:
            msg = f"mutant {self.name}: its text is {len(found)} times in {self.where}, wanted once"
            raise ValueError(msg)
        return found[0]

    def _part_changed(self, inside: list[str]) -> list[list[str]]:
        text = "".join(inside)
        return [[text.replace(self.old, self.new)]] * text.count(self.old)

    def _lines_changed(self, inside: list[str]) -> list[list[str]]:
        old = [line for line in map(_without_comment, self.old.splitlines(keepends=True)) if line]
        inside = [line for line in inside if line]
        own = _indentation(old)
        changed = []
        for at in range(len(inside) - len(old) + 1):
            found = inside[at : at + len(old)]
            there = _indentation(found)
            if found == [_moved(line, own, there) for line in old]:
                new = [_moved(line, own, there) for line in self.new.splitlines(keepends=True)]
                changed.append([*inside[:at], *new, *inside[at + len(old) :]])
        return changed

    @property
    def catcher(self) -> str:
        """Who catches it, for people."""
        if self.act:
            failing = ", whose fsync fails" if self.failing_sync else ""
            return f"trace law {self.says.removesuffix(' (')}, act {self.act}{failing}"
        file, _, test = self.caught_by.partition("::")
        return f"`{test or file}`"


def without_comments(lines: list[str]) -> list[str]:
    """Return the lines of a file without comments; a line with nothing else is empty, without its end."""
    bare = list(lines)
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            bare[row - 1] = _ended(lines[row - 1][:column])
    return bare


def _without_comment(line: str) -> str:
    """Return a line of a mutant, which may be a part of a statement, without its comment."""
    found = re.search(r"(?:^|(?<=  ))#.*|^\s*#.*", line)
    return line if found is None else _ended(line[: found.start()])


def _ended(text: str) -> str:
    return f"{text.rstrip()}\n" if text.strip() else ""


def _indentation(lines: list[str]) -> str:
    """Return what all lines that are not empty begin with."""
    return min((line[: len(line) - len(line.lstrip())] for line in lines if line.strip()), key=len, default="")


def _moved(line: str, before: str, now: str) -> str:
    return now + line.removeprefix(before) if line.strip() else line


def law(act: str) -> str:
    """Return the test that judges an act by the law."""
    return f"{_LAW}[{act}]"
