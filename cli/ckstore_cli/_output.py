"""Output of commands. Results go to stdout, as lines for people or as JSON. Warnings and notes go to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from ckstore.model.words import headed
from ckstore_cli._documents import to_json

JSON_VERSION = 1
"""The member ``v`` of every JSON document. It is increased when a key is removed or changes its meaning."""

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def colored(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that shows colors, and the user did not set NO_COLOR."""
    # https://no-color.org
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def style(text: str, look: str, *, on: bool) -> str:
    """Return `text` in a style (`bold`, `dim` or a color), or unchanged if `on` is false."""
    return f"\x1b[{_CODES[look]}m{text}\x1b[0m" if on and text else text


class Output:
    """Prints the output of one command. With ``--json``, lines for people are not printed."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        # In a pipe the width is None and nothing is cut, since programs that parse lines must not depend on the width.
        on_terminal = sys.stdout.isatty() and not as_json
        self.width: int | None = None
        if on_terminal:
            import shutil  # slow to import, and not needed for a pipe

            self.width = shutil.get_terminal_size().columns
        self._color = colored(sys.stdout) and not as_json

    def line(self, text: str = "") -> None:
        """Print a line for people. `text` must be printable (`ckstore.model.words.printable`)."""
        if not self.as_json:
            sys.stdout.write(text + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Print lines for people."""
        for text in texts:
            self.line(text)

    def headed(self, word: str, text: str, look: str) -> None:
        """Print a line for people. Unless `word` is empty, the line begins with `word`, in the style `look`."""
        self.line(headed(self.style(word, look), text))

    def table(self, lines: Sequence[str]) -> None:
        """Print the lines of a table. The first line has the names of the columns."""
        self.lines([self.style(lines[0], "dim"), *lines[1:]])

    def document(self, document: object, **given: object) -> None:
        """Print a report or a mapping as one line of JSON, with ``v`` before its own keys (see `to_json`)."""
        if self.as_json:
            whole = {"v": JSON_VERSION, **to_json(document, **given)}
            # NaN is not JSON, and jq rejects it.
            sys.stdout.write(json.dumps(whole, allow_nan=False) + "\n")

    def documents(self, documents: Iterable[object]) -> None:
        """Print a line of JSON for each item of a list."""
        for document in documents:
            self.document(document)

    def note(self, text: str) -> None:
        """Print a note for people on stderr. With ``--json`` it is not printed."""
        if not self.as_json:
            sys.stdout.flush()  # keeps the order if both streams are the same terminal
            sys.stderr.write(text + "\n")

    def warning(self, text: str) -> None:
        """Print a warning on stderr. With ``--json`` it is not printed, since the document contains it."""
        self.note(f"{style('warning:', 'yellow', on=colored(sys.stderr))} {text}")

    def style(self, text: str, look: str) -> str:
        """Return `text` in a style, if stdout shows colors."""
        return style(text, look, on=self._color)
