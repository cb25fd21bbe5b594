"""Count small private functions that are called once: ``python -m tests.tools.used_once [--list]``.

A function counts if its name begins with one underscore, its definition has at most six lines with its docstring, and
its module uses the name once, in a call. Decorated functions and those that are imported or passed on do not count.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("ckstore", "cli", "migrations")
MAX_LINES = 6


def used_once(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield the line, the name and the line of the call of each small function of a module that is called once."""
    nodes = list(ast.walk(ast.parse(text)))
    uses = Counter(_name(node) for node in nodes)
    calls = {_name(node.func): node.lineno for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
            continue
        is_private = node.name.startswith("_") and not node.name.startswith("__")
        is_small = (node.end_lineno or node.lineno) - node.lineno < MAX_LINES
        if is_private and is_small and uses[node.name] == 1 and node.name in calls:
            yield node.lineno, node.name, calls[node.name]


def _name(node: ast.AST) -> str:
    """Return the name that a node uses, without what it is an attribute of, or an empty string."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def main(arguments: list[str]) -> None:
    """Print how many there are, with ``--list`` also where."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, called in line {called}"
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        for line, name, called in used_once(path.read_text(encoding="utf-8"))
    ]
    lines = found if "--list" in arguments else []
    sys.stdout.writelines(f"{line}\n" for line in [*lines, f"{len(found)} small functions are called once"])


if __name__ == "__main__":
    main(sys.argv[1:])
