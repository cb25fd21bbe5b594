"""What the processes of a soak have promised, in one file that all of them append to.

Each line is one write, so that a kill leaves a whole line or, at worst, a torn one that counts as not written: a save
is noted before it begins and after it returned, a drop before it begins. The file lies outside the store and has to
outlive processes, not the machine.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Place = tuple[str, int]
"""Run and step."""

Save = tuple[int, int]
"""The number of the line in which a save began, and its token."""

_READ_BYTES = 2**24


class Ledger:
    """The file at `path`; shared by all processes of a soak."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._history = History()
        self._read_bytes = 0

    def trying(self, run: str, step: int | None, token: int) -> None:
        """A save of the state that `token` stands for is about to begin; `step` None: the next one of the run."""
        self._line(["try", run, step, token])

    def acknowledged(self, run: str, step: int, token: int) -> None:
        """That save has returned."""
        self._line(["ack", run, step, token])

    def dropping(self, places: list[Place]) -> None:
        """These checkpoints are about to be dropped, if nothing speaks against it."""
        self._line(["drop", *places])

    def at_remote(self, run: str, step: int, token: int) -> None:
        """The remote was seen to have that checkpoint, or a later one of its step."""
        self._line(["remote", run, step, token])

    def rules(self, keep_last: int, runs: Sequence[str]) -> None:
        """From now on a rule may remove, at any moment, what is not among so many newest of these runs."""
        self._line(["rules", keep_last, *runs])

    def moving_tag(self, name: str, id: str) -> None:
        """A tag is about to be moved to a checkpoint."""
        self._line(["tag", name, id])

    def moved_tag(self, name: str) -> None:
        """It was moved."""
        self._line(["tagged", name])

    def untagged(self, name: str) -> None:
        """It was removed, since its checkpoint is lost."""
        self._line(["untagged", name])

    def begins_again(self, promised: dict[Place, int]) -> None:
        """The store was lost, or set back: place -> token of what it must have; the rest may be there."""
        self._line(["again", *([*place, token] for place, token in promised.items())])

    def did(self, **counts: int) -> None:
        """Something else was done, so many times."""
        self._line(["did", counts])

    def read(self) -> History:
        """Return what was noted up to now: always the same object, to which what is new was added."""
        while data := os.pread(self._fd, _READ_BYTES, self._read_bytes):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:  # a line that is being written
                break
            self._read_bytes += len(whole)
            for line in whole.split(b"\n"):
                try:
                    what, *rest = json.loads(line)
                except ValueError:  # between two lines, or torn by a kill
                    continue
                self._history.add(what, rest)
        return self._history

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _line(self, entry: list[Any]) -> None:
        data = f"\n{json.dumps(entry)}\n".encode()
        if os.write(self._fd, data) != len(data):
            raise OSError(f"{self.path} took a part of a line only")


@dataclass
class History:
    """What a ledger says.

    Attributes:
        tried: For each run the saves that were begun, as (number of the line, step or None, token).
        acknowledged: For each place the last save that returned.
        dropped: For each place the number of the last line that says it is about to be dropped.
        remote: For each place the last save that the remote was seen to have.
        rules: For each run how many of its newest checkpoints a rule keeps.
        tags: For each tag the ids that it was to be moved to since the store began.
        moved: The tags that were moved since then.
        did: How often what was done.
    """

    tried: dict[str, list[tuple[int, int | None, int]]] = field(default_factory=dict)
    acknowledged: dict[Place, Save] = field(default_factory=dict)
    dropped: dict[Place, int] = field(default_factory=dict)
    remote: dict[Place, Save] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    tags: dict[str, set[str]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    did: Counter[str] = field(default_factory=Counter)
    _lines: int = 0
    _begun: dict[int, int] = field(default_factory=dict)
    _acknowledged_tokens: set[int] = field(default_factory=set)

    def add(self, what: str, rest: list[Any]) -> None:
        """Take in one line."""
        self._lines += 1
        if what == "try":
            run, step, token = rest
            self.tried.setdefault(run, []).append((self._lines, step, token))
            self._begun[token] = self._lines
        elif what == "ack":
            run, step, token = rest
            self.acknowledged[run, step] = (self._begun[token], token)
            self._acknowledged_tokens.add(token)
            self.did["acknowledged"] += 1
        elif what == "drop":
            self.dropped.update(dict.fromkeys(((run, step) for run, step in rest), self._lines))
        elif what == "remote":
            run, step, token = rest
            self.remote[run, step] = max(self.remote.get((run, step), (0, 0)), (self._begun[token], token))
        elif what == "rules":
            keep_last, *runs = rest
            self.rules.update(dict.fromkeys(runs, keep_last))
        elif what == "again":
            self.acknowledged = {(run, step): (self._begun[token], token) for run, step, token in rest}
            self.dropped.clear()
            self.tags.clear()
            self.moved.clear()
        elif what == "tag":
            name, id = rest
            self.tags.setdefault(name, set()).add(id)
        elif what == "tagged":
            self.moved.add(rest[0])
        elif what == "untagged":
            self.moved.discard(rest[0])
        else:
            self.did.update(rest[0])

    @property
    def promised(self) -> list[Place]:
        """Every place at which a checkpoint must be: one was acknowledged and no actor set out to drop it since."""
        return [place for place in self.acknowledged if not self.may_be_gone(place)]

    def may_be_gone(self, place: Place) -> bool:
        """Whether there may be no checkpoint at a place."""
        began, _ = self.last_acknowledged(place)
        return not began or self.dropped.get(place, 0) > began or self.is_beyond(place, began)

    def is_beyond(self, place: Place, began: int) -> bool:
        """Whether a rule may have removed what was saved in that line, since enough steps were begun after it."""
        run, step = place
        if run not in self.rules:
            return False
        later = {at if at is not None else -line for line, at, _ in self.tried[run] if line > began}
        return len(later - {step}) >= self.rules[run]

    def last_acknowledged(self, place: Place) -> Save:
        """Return the last save at a place that returned, or (0, 0)."""
        return self.acknowledged.get(place, (0, 0))

    def tokens(self, place: Place, *, since: Save | None = None) -> set[int]:
        """Return the tokens of the states of which one must be at `place` if a checkpoint is there.

        That is the last that was acknowledged, or one whose save began later and was not heard of again. `since` is
        what `last_acknowledged` said earlier: what was acknowledged after it does not count as done, so that a look
        at the store between the two is judged fairly. Where it was dropped since, an earlier one may be the checkpoint
        of the step again: one with a tag, or whose saver was killed before it dropped what it replaced.
        """
        run, step = place
        began, token = self.last_acknowledged(place) if since is None else since
        tried, is_dropped = self.tried.get(run, []), self.dropped.get(place, 0) > began
        later = {
            other
            for line, at, other in tried
            if (line > began or is_dropped)
            and (at == step or (at is None and not began and not self._is_elsewhere(other, place)))
        }
        return later | {token} if began else later

    def is_known(self, run: str, step: int, token: int) -> bool:
        """Whether a save of that state at that step was begun."""
        return any(token == other and at in {step, None} for _, at, other in self.tried.get(run, []))

    def _is_elsewhere(self, token: int, place: Place) -> bool:
        """Whether a save without a step was acknowledged at another place."""
        return token in self._acknowledged_tokens and self.last_acknowledged(place)[1] != token
