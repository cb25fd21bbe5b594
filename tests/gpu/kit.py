"""``make gpu-kit``: put what a machine with a GPU and no network lacks into one folder: wheels, and a copy of the tree.

There, Python, torch and NumPy are installed; `sh build/gpu-kit/tree/tests/gpu/run.sh` does the rest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 50 * 2**20
NEEDED = ("ckstore", "pytest", "pytest-timeout", "hypothesis")
THERE = frozenset({"torch", "numpy", "pip"})
"""What the machine has, with all that they need."""
_TREE = ("ckstore", "cli", "migrations", "tests", "constraints.txt", "pyproject.toml")
_PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 12, 5))
"""pip matches each exactly; `manylinux2014` and older are other names for the last three."""
_OLD_NAMES = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")


def pins() -> dict[str, str]:
    """Return the version of each package that constraints.txt names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def packages(python: str, roots: Iterable[str] = NEEDED) -> list[str]:
    """Return every package that `roots` need on that Python and the machine lacks, such as ``xxhash==4.1.0``.

    Raises:
        SystemExit: constraints.txt has no version of one of them.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    waiting, names = [canonicalize_name(name) for name in roots], set[str]()
    while waiting:
        name = waiting.pop()
        if name in names or name in THERE:
            continue
        names.add(name)
        requirements = map(Requirement, importlib.metadata.requires(name) or ())
        waiting += [
            canonicalize_name(needed.name)
            for needed in requirements
            if needed.marker is None or needed.marker.evaluate(environment)
        ]
    pinned = pins()
    names.discard("ckstore")  # the tree has it
    if unpinned := sorted(names - pinned.keys()):
        raise SystemExit(f"error: constraints.txt has no version of {', '.join(unpinned)}, which the kit needs")
    return sorted(f"{name}=={pinned[name]}" for name in names)


def download(wanted: Sequence[str], python: str, folder: Path) -> None:
    """Fetch the wheels for Linux on x86-64."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command += [word for platform in (*_PLATFORMS, *_OLD_NAMES) for word in ("--platform", platform)]
    subprocess.run([*command, "--dest", str(folder), *wanted], check=True)


def copy_tree(folder: Path) -> None:
    """Copy the sources and the tests."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.o")
    for name in _TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy2(source, folder / name)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder.

    Raises:
        SystemExit: They are more than can be carried to the machine.
    """
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if nbytes >= MOST_BYTES:
        raise SystemExit(
            f"error: {folder} has {nbytes / 2**20:.1f} MiB; the kit must stay below {MOST_BYTES >> 20} MiB"
        )
    return nbytes


def main(arguments: Sequence[str]) -> None:
    """Make the kit."""
    parser = argparse.ArgumentParser(prog="make gpu-kit", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", options.python):
        parser.error(f"--python must be such as 3.12, got {options.python}")
    shutil.rmtree(options.folder, ignore_errors=True)
    wheels = options.folder / "wheels"
    wheels.mkdir(parents=True)
    wanted = packages(options.python)
    download(wanted, options.python, wheels)
    copy_tree(options.folder / "tree")
    nbytes = size_of(options.folder)
    count = len(list(wheels.iterdir()))
    print(f"{options.folder}: {count} wheels for Python {options.python} and the tree, {nbytes / 2**20:.1f} MiB")
    print(f"there: sh {options.folder}/tree/tests/gpu/run.sh gpu.json")


if __name__ == "__main__":
    main(sys.argv[1:])
