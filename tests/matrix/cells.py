"""The cells of the matrix: which Python, which torch, and the other packages at their lowest or newest versions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOWEST, NEWEST = "lowest", "newest"
EXTRAS = ("torch", "watch", "blake3", "compact", "remote", "fsspec")
"""The extras of every cell."""
FRAMEWORKS = "integrations"
"""The extra of a few cells: it holds the frameworks, which the library does not import."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment of the matrix.

    Attributes:
        python: Version of the interpreter, such as ``"3.12"``.
        torch: Version of torch, such as ``"2.6"``, or `NEWEST`.
        bounds: Whether every other direct dependency has the `LOWEST` or the `NEWEST` version that pyproject.toml
            allows and that has a wheel for this Python.
        frameworks: Whether the cell also has the extra `FRAMEWORKS` and runs the tests of it.
    """

    python: str
    torch: str
    bounds: str
    frameworks: bool = False

    @property
    def name(self) -> str:
        """A name without spaces, such as ``"py3.12-torch2.6-newest"``."""
        return f"py{self.python}-torch{self.torch}-{self.bounds}{'-frameworks' if self.frameworks else ''}"


# Cells with the same torch follow one another, since they share its download.
CELLS = (
    Cell("3.11", "2.6", LOWEST),
    Cell("3.12", "2.6", NEWEST),
    Cell("3.13", "2.6", LOWEST),
    Cell("3.12", "2.9", NEWEST),
    Cell("3.14", "2.9", LOWEST),
    Cell("3.11", "2.13", LOWEST, frameworks=True),  # torch_checkpointing needs torch 2.11
    Cell("3.13", "2.14", NEWEST),
    Cell("3.14", "2.14", NEWEST),
    Cell("3.11", NEWEST, LOWEST),
    Cell("3.12", NEWEST, NEWEST, frameworks=True),
    Cell("3.13", NEWEST, NEWEST),
    Cell("3.14", NEWEST, NEWEST),
)


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the table ``project`` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def direct(table: Mapping[str, Any], extras: Iterable[str]) -> dict[str, Requirement]:
    """Return the requirements of the core and of `extras` by canonical name.

    Raises:
        ValueError: Two of them name one package with different versions.
    """
    found: dict[str, Requirement] = {}
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    for line in lines:
        requirement = Requirement(line)
        known = found.setdefault(canonicalize_name(requirement.name), requirement)
        if known.specifier != requirement.specifier:
            raise ValueError(f"pyproject.toml must give {requirement.name} one range, got {known} and {requirement}")
    return found


def requirements(cell: Cell, table: Mapping[str, Any]) -> list[str]:
    """Return the direct requirements of a cell, with its torch."""
    extras = (*EXTRAS, FRAMEWORKS) if cell.frameworks else EXTRAS
    found = direct(table, extras)
    if cell.torch != NEWEST:
        found["torch"] = Requirement(f"torch=={cell.torch}.*")
    return [str(requirement) for requirement in found.values()]


def lower_bounds(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the lower bound of every package of the matrix by canonical name.

    Raises:
        ValueError: A requirement has no lower bound.
    """
    bounds: dict[str, str] = {}
    for name, requirement in direct(table, (*EXTRAS, FRAMEWORKS)).items():
        found = [one.version for one in requirement.specifier if one.operator == ">="]
        if len(found) != 1:
            raise ValueError(f"pyproject.toml must give {name} a lower bound, got {requirement}")
        bounds[name] = found[0]
    return bounds
