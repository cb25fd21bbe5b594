"""What every part of the demo says its lines with."""

from __future__ import annotations

from collections.abc import Sequence

from ckstore.errors import CkstoreError
from ckstore_cli._format import columns


class DemoFailed(CkstoreError):
    """The demo could not show what it is to show."""


def say_heading(text: str) -> None:
    """Print a line with a line below it."""
    say(f"\n{text}\n{'-' * len(text)}")


def say_rows(rows: Sequence[Sequence[str]], align: str = "") -> None:
    """Print a table; `align` is a `<` or `>` for each column, `<` unless told."""
    if rows:
        for line in columns(rows, align or "<" * len(rows[0])):
            say(line.rstrip())


def say(text: str) -> None:
    """Print `text` at once: a trainer writes to the same place."""
    print(text, flush=True)


def steps_text(steps: Sequence[int]) -> str:
    """Return `steps` in words."""
    return f"steps {' '.join(map(str, steps))}"
