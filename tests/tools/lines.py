"""Count the lines of the shipped code by room: ``python -m tests.tools.lines``. `make lint` prints it.

A docstring's lines are all from its first to its last quotes; a comment is a line with nothing else on it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("ckstore", "cli", "migrations")
KINDS = ("code", "docstring", "comment", "blank")


def kinds_of(text: str) -> Counter[str]:
    """Return how many lines of a module are of each kind."""
    lines = text.splitlines()
    kinds = ["blank" if not line.strip() else "code" for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in ast.walk(ast.parse(text)):
        # Also the string below an attribute, which is how it is documented.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            last = node.end_lineno or node.lineno
            kinds[node.lineno - 1 : last] = ["docstring"] * (last - node.lineno + 1)
    return Counter(kinds)


def count(root: Path) -> dict[str, Counter[str]]:
    """Return the kinds of lines by room: the folders of `ckstore`, its modules at the top, and the other sources."""
    found: dict[str, Counter[str]] = {}
    for top in ROOMS:
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).parts
            room = "/".join(parts[:2]) if top == "ckstore" and len(parts) > 2 else top
            found.setdefault(room, Counter()).update(kinds_of(path.read_text(encoding="utf-8")))
            found[room]["files"] += 1
    return found


def table(rooms: dict[str, Counter[str]]) -> Iterable[str]:
    """Give the lines of a table, the sum last."""
    columns = ("files", "lines", *KINDS)
    yield f"{'room':<22}" + "".join(f"{name:>11}" for name in columns)
    whole: Counter[str] = sum(rooms.values(), Counter())
    for room, kinds in [*rooms.items(), ("all", whole)]:
        values = {**kinds, "lines": sum(kinds[kind] for kind in KINDS)}
        yield f"{room:<22}" + "".join(f"{values.get(name, 0):>11,}" for name in columns)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table(count(Path(sys.argv[1]) if sys.argv[1:] else ROOT)))
