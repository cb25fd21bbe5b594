"""The wheel, installed in an empty environment, is what users get: nothing else guards that."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging import install_check
from tests.support.once import once

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"ckstore", "ckstore_cli", "ckstore_migrations"}

# Taken before a test replaces HOME: pip may be configured there.
_OUTER = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env=_OUTER,
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(dist: Path) -> None:
        out = ("--no-isolation", "--outdir", dist)
        run(sys.executable, "-m", "build", "--wheel", *out, ROOT, cwd=dist)

    (found,) = once(tmp_path_factory, "wheel", build).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment in which nothing but the wheel and what it needs was installed."""

    def install(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        pip = (folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        constraints = ("-c", ROOT / "constraints.txt")
        run(*pip, "install", "-q", *constraints, wheel, cwd=folder)

    return once(tmp_path_factory, "installed", install) / "venv"


def project_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def test_the_wheel_holds_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names} == {
        *TOP_LEVEL,
        f"ckstore-{project_version()}.dist-info",
    }
    assert "ckstore/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or "tests/" in name]


def test_the_wheel_asks_for_no_more_than_the_core_needs(wheel: Path) -> None:
    """What comes of it is tried in an environment of its own in `make crash`."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"ckstore-{project_version()}.dist-info/METADATA").decode().splitlines()
        programs = archive.read(f"ckstore-{project_version()}.dist-info/entry_points.txt").decode()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]

    assert {re.split(r"[^\w-]", each)[0] for each in wanted} == {"click", "xxhash", "sqlite-utils", "safetensors"}
    assert "ckstore = ckstore_cli.app:main" in programs


def test_the_wheel_holds_every_source_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(root).as_posix()
        for root in (ROOT, ROOT / "cli", ROOT / "migrations")
        for package in TOP_LEVEL
        for path in (root / package).rglob("*.py")
    }

    assert sources <= names


@pytest.mark.whole
def test_installing_adds_exactly_three_importable_names(installed: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.metadata as m, json;"
        "print(json.dumps([f.parts[0] for f in m.files('ckstore') if f.parts[0] != '..']))"
    )
    added = set(json.loads(run(installed / "bin" / "python", "-c", script, cwd=tmp_path)))

    assert {name for name in added if not name.endswith(".dist-info")} == TOP_LEVEL


@pytest.mark.whole
def test_the_core_needs_neither_torch_nor_numpy(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "bin" / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    names = {entry["name"].lower() for entry in json.loads(listed)}

    assert {"ckstore", "click", "xxhash", "sqlite-utils", "safetensors"} <= names
    assert not {"torch", "numpy", "rich", "pytest"} & names


@pytest.mark.whole
def test_the_library_is_imported_without_any_extra(installed: Path, tmp_path: Path) -> None:
    script = "import ckstore, ckstore_cli, ckstore_migrations; print(ckstore.__file__)"
    where = run(installed / "bin" / "python", "-c", script, cwd=tmp_path).strip()

    assert Path(where).is_relative_to(installed.resolve())


@pytest.mark.whole
def test_the_core_is_used_without_torch_or_a_tool_of_the_development(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    install_check.check_installed(installed / "bin" / "python", "", tmp_path)
    install_check.smoke(installed / "bin", install_check.build_of(wheel), tmp_path, has_torch=False)


@pytest.mark.whole
def test_the_command_tells_its_help(installed: Path, tmp_path: Path) -> None:
    told = run(installed / "bin" / "ckstore", "--help", cwd=tmp_path)

    assert re.search(r"usage: +ckstore", told, re.IGNORECASE)


def test_the_source_package_holds_what_its_tests_need(tmp_path: Path) -> None:
    out = ("--no-isolation", "--outdir", tmp_path)
    run(sys.executable, "-m", "build", "--sdist", *out, ROOT, cwd=tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"ckstore/py.typed", "tests/conftest.py", "constraints.txt", "Makefile"} <= names
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(".venv") or "__pycache__" in name]
