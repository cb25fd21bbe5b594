"""What a process that may die at any moment has promised.

It writes one line before and one after each call that changes a checkpoint. The file lies outside
the store. It is not fsynced: it has to outlive a process, not the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

Place = tuple[str, int]
"""Run and step."""
Fact = tuple[str, str]
"""What the store says about a checkpoint beside its state: ``("tag", NAME)``, ``("pin", RUN@STEP)`` and the like."""


class Journal:
    """The writing side. A context manager."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def begin(self, place: Place | Fact, state: str | None) -> None:
        """The state is about to be put there; None: what is there is about to be deleted.

        Of a fact it is the text that the checker will see, such as the name of the tagged checkpoint.
        """
        self._line("begin", place, state)

    def done(self, place: Place | Fact, state: str | None) -> None:
        """It was acknowledged."""
        self._line("done", place, state)

    def failed(self, *, unknown: bool) -> None:
        """What was begun ended in an error; `unknown`: it says that it may have happened."""
        self._line("unknown" if unknown else "failed", ("", 0), None)

    def store_made(self) -> None:
        """`Store.init` has returned."""
        self._line("made", ("", 0), None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self, what: str, place: Place | Fact, state: str | None) -> None:
        os.write(self._fd, json.dumps([what, *place, state]).encode() + b"\n")


@dataclass
class Promised:
    """What must be in the store, as far as is known.

    Attributes:
        options: For each place the names of the states of which one must be there; None among
            them: it may be empty.
        facts: For each fact the texts of which one must be there, in the same way.
        store: Whether there must be a store.
    """

    options: dict[Place, set[str | None]] = field(default_factory=dict)
    facts: dict[Fact, set[str | None]] = field(default_factory=dict)
    store: bool = False


def read_journal(path: Path) -> Promised:
    """Return what the process had promised when it wrote its last line."""
    return promised_by(path.read_text().splitlines())


def promised_by(lines: Iterable[str]) -> Promised:
    """Return what these lines of a journal promise."""
    promised = Promised()
    known: dict[Place | Fact, set[str | None]] = {}
    before: dict[Place | Fact, set[str | None]] = {}
    for line in lines:
        what, one, other, state = json.loads(line)
        place = (one, other)
        if what == "made":
            promised.store = True
        elif what == "begin":
            before[place] = set(known.get(place, {None}))
            known[place] = before[place] | {state}
        elif what == "done":
            known[place] = {state}
            before.pop(place)
        elif what == "failed":
            known.update(before)
            before.clear()
        else:
            before.clear()
    for (one, other), options in known.items():
        if isinstance(other, int):
            promised.options[one, other] = options
        else:
            promised.facts[one, other] = options
    return promised
