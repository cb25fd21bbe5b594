"""Make the environment of a cell with uv, which resolves to the lowest versions if asked to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.matrix.cells import LOWEST, ROOT, Cell, requirements

INSTALL_S = 1200
"""The most seconds that each command of uv may take."""
TOOLS = ("hypothesis", "packaging", "pytest", "pytest-timeout", "pytest-xdist")
"""The packages that run the tests, at the versions of constraints.txt."""
FROM_SOURCE = frozenset({"deepspeed"})
"""Packages that have no wheels. A lowest version of any other one must have a wheel for the Python of the cell."""


class CannotInstall(Exception):
    """The environment of a cell cannot be made; the message has the last lines of uv."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment below build/matrix, and the commands of uv that fill it."""

    folder: Path
    cache: Path
    pythons: str = ""

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    def make(self, cell: Cell, table: Mapping[str, object]) -> None:
        """Make the environment, and install the packages of the cell, ckstore and the test tools.

        Raises:
            CannotInstall: No such Python, no versions that fit together, or the time is up.
        """
        self.uv("venv", "--clear", "--python", cell.python, str(self.folder))
        listed = requirements(cell, table)
        names = {Requirement(line).name for line in listed}
        wheels = [word for name in sorted(names - FROM_SOURCE) for word in ("--only-binary", name)]
        # Alone, since the lowest versions of the others would be resolved together with the lowest torch.
        self.install("--no-deps", next(line for line in listed if Requirement(line).name == "torch"))
        lowest = ["--resolution", "lowest-direct"] if cell.bounds == LOWEST else []
        self.install(*lowest, *wheels, *listed, *pins(TOOLS))
        self.install("--no-deps", "--editable", str(ROOT))

    def install(self, *arguments: str) -> None:
        """Install packages into the environment.

        Raises:
            CannotInstall: uv failed, or took longer than `INSTALL_S`.
        """
        self.uv("pip", "install", "--python", str(self.python), *arguments)

    def uv(self, *arguments: str) -> None:
        """Run uv, which looks for interpreters in `pythons` first.

        Raises:
            CannotInstall: uv failed, or took longer than `INSTALL_S`.
        """
        command = [find_uv(), "--quiet", *arguments]
        path = os.pathsep.join(filter(None, (self.pythons, os.environ.get("PATH"))))
        environment = {**os.environ, "PATH": path, "UV_CACHE_DIR": str(self.cache)}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=INSTALL_S, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise CannotInstall(f"uv {arguments[0]} took longer than {INSTALL_S} s") from error
        if done.returncode != 0:
            raise CannotInstall("\n".join([f"uv {arguments[0]} failed:", *done.stderr.splitlines()[-12:]]))

    def remove(self) -> None:
        """Delete the environment."""
        shutil.rmtree(self.folder, ignore_errors=True)


def find_uv() -> str:
    """Return the program uv of this environment, or the one in PATH.

    Raises:
        CannotInstall: There is none.
    """
    found = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if found is None:
        raise CannotInstall("the program uv is missing; `make venv` installs it")
    return found


def pins(names: Sequence[str]) -> list[str]:
    """Return ``name==version`` for each name, as constraints.txt has it.

    Raises:
        CannotInstall: constraints.txt lacks one of them.
    """
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    known = {line.partition("==")[0]: line for line in lines if "==" in line}
    if missing := [name for name in names if name not in known]:
        raise CannotInstall(f"constraints.txt must pin {', '.join(missing)}")
    return [known[name] for name in names]
