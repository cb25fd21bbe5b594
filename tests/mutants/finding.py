"""Where the code has what a mutant changes: the definition of a name, wherever it lies in the package.

A name is dotted as in Python, and as short as one likes: ``fan_out`` is every function of that name in ``ckstore``,
``publish.publish`` the one in a module ``publish``, ``Staging.seal`` a method, ``fs.locks`` a whole module. So a mutant
follows what moves to another module or room.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "ckstore"


@dataclass(frozen=True)
class Definition:
    """Lines of a file that define a name.

    Attributes:
        name: With all that it lies in: ``objects.staging.Staging.seal``.
        file: Relative to the package.
        begin: Where in the lines of the file it begins, counted from 0.
        end: Before which it ends.
    """

    name: str
    file: str
    begin: int
    end: int

    def sources(self) -> list[str]:
        """Return the lines of the file."""
        return (PACKAGE / self.file).read_text(encoding="utf-8").splitlines(keepends=True)


def definitions(name: str) -> list[Definition]:
    """Return what has this name."""
    known = all_definitions().get(name.rpartition(".")[2], [])
    return [definition for definition in known if f".{definition.name}".endswith(f".{name}")]


@cache
def all_definitions() -> dict[str, list[Definition]]:
    """Return every definition of the package by the last part of its name: 700 mutants look for theirs."""
    found: defaultdict[str, list[Definition]] = defaultdict(list)
    for definition in _read_definitions():
        found[definition.name.rpartition(".")[2]].append(definition)
    return dict(found)


def _read_definitions() -> list[Definition]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE)
        sources = path.read_text(encoding="utf-8")
        module = ".".join(file.with_suffix("").parts)
        found.append(Definition(module, str(file), 0, sources.count("\n")))
        found.extend(_inside(ast.parse(sources), module, str(file)))
    return found


def _inside(node: ast.AST, name: str, file: str) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}"
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield Definition(inner, file, first - 1, child.end_lineno or first)
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if isinstance(target, ast.Name):
                yield Definition(f"{name}.{target.id}", file, child.lineno - 1, child.end_lineno or child.lineno)
        yield from _inside(child, inner, file)
