"""`ckstore --version` names the commit of the code: in a checkout, in a wheel, in a source package, in an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ckstore.version import __version__
from tests.support.requirements import require_program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("ckstore", "cli", "migrations", "tests/packaging", ".gitattributes", ".gitignore")
FILES = ("LICENSE", "README.md", "pyproject.toml")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=cwd, env=env | variables
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commit_all(folder: Path) -> str:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    if not (folder / ".git").exists():
        run(*git, "init", "-q", cwd=folder)
    run(*git, "add", "-A", cwd=folder)
    run(*git, "commit", "-q", "-m", "m", cwd=folder)
    return run("git", "rev-parse", "HEAD", cwd=folder).strip()


def told(folder: Path, elsewhere: Path) -> str:
    """Return what `ckstore --version` prints after the version if the code is in `folder`."""
    roots = (folder, folder / "cli", folder / "migrations")
    shown = run(
        sys.executable, "-m", "ckstore_cli", "--version", cwd=elsewhere, PYTHONPATH=os.pathsep.join(map(str, roots))
    )
    begin = f"ckstore {__version__} (commit "
    assert shown.startswith(begin)
    return shown.removeprefix(begin).removesuffix(")\n")


def build(source: Path, target: str, out: Path) -> Path:
    """Build a package as pip does, but without a second environment, and return its file."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (file,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


def unpack(file: Path, folder: Path) -> Path:
    if file.suffix == ".whl":
        shutil.unpack_archive(file, folder, "zip")
        return folder
    shutil.unpack_archive(file, folder, filter="data")
    (top,) = folder.iterdir()
    return top


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with one commit of what the packages are made of."""
    require_program("git")
    folder = tmp_path / "checkout"
    ignore = shutil.ignore_patterns("__pycache__")
    for part in (*PARTS, *FILES):
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignore)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    commit_all(folder)
    return folder


def commit_of(folder: Path) -> str:
    return run("git", "rev-parse", "HEAD", cwd=folder).strip()


def test_a_checkout_tells_its_commit_and_whether_files_differ_from_it(checkout: Path, tmp_path: Path) -> None:
    assert told(checkout, tmp_path) == commit_of(checkout)

    (checkout / "ckstore" / "new.py").touch()
    assert told(checkout, tmp_path) == f"{commit_of(checkout)}, with uncommitted changes"

    commit_all(checkout)
    assert told(checkout, tmp_path) == commit_of(checkout)


def test_a_checkout_tells_its_own_commit_in_a_hook_of_another_repository(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "folder").mkdir(parents=True)
    (other / "file").touch()
    commit_all(other)

    shown = run(
        *(sys.executable, "-m", "ckstore_cli", "--version"),
        cwd=other,
        PYTHONPATH=f"{checkout}{os.pathsep}{checkout / 'cli'}",
        GIT_DIR=str(other / ".git"),
        GIT_WORK_TREE=str(other),
    )

    assert f"(commit {commit_of(checkout)})" in shown


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_a_package_keeps_the_commit_that_it_was_built_from(target: str, checkout: Path, tmp_path: Path) -> None:
    commit = commit_of(checkout)
    file = build(checkout, target, tmp_path / "out")
    assert run("git", "status", "--porcelain", cwd=checkout) == ""  # the build leaves nothing in the checkout

    # Below another repository, whose commit would be wrong.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    commit_all(tmp_path / "other")
    package = unpack(file, tmp_path / "other" / "package")
    assert told(package, tmp_path) == commit

    if target == "sdist":
        assert told(unpack(build(package, "wheel", tmp_path / "again"), tmp_path / "wheel"), tmp_path) == commit


def test_a_wheel_of_a_changed_checkout_says_so(checkout: Path, tmp_path: Path) -> None:
    (checkout / "ckstore" / "new.py").touch()

    package = unpack(build(checkout, "wheel", tmp_path / "out"), tmp_path / "package")

    assert (package / "ckstore" / "new.py").exists()
    assert told(package, tmp_path) == f"{commit_of(checkout)}, with uncommitted changes"


def test_an_archive_made_by_git_tells_its_commit(checkout: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    run("git", "archive", "--prefix=code/", "-o", archive, "HEAD", cwd=checkout)

    code = unpack(archive, tmp_path / "archive")

    assert told(code, tmp_path) == commit_of(checkout)
    assert told(unpack(build(code, "wheel", tmp_path / "out"), tmp_path / "wheel"), tmp_path) == commit_of(checkout)


@pytest.mark.parametrize("found", ["nothing", "no JSON", "JSON of another form"])
def test_sources_without_a_record_or_a_repository_say_that_the_commit_is_unknown(
    found: str, checkout: Path, tmp_path: Path
) -> None:
    shutil.rmtree(checkout / ".git")
    record = checkout / "ckstore" / "build.json"
    if found == "nothing":
        record.unlink()
    else:
        record.write_text("{" if found == "no JSON" else "[]", encoding="utf-8")
    # A repository around the code is not the repository of the code.
    (tmp_path / "file").touch()
    commit_all(tmp_path)

    assert told(checkout, tmp_path) == "unknown"
    assert told(unpack(build(checkout, "wheel", tmp_path / "out"), tmp_path / "package"), tmp_path) == "unknown"


def test_an_editable_install_records_no_commit_since_its_code_changes(checkout: Path, tmp_path: Path) -> None:
    script = "import sys, hatchling.build as b; print(b.build_editable(sys.argv[1]))"
    name = run(sys.executable, "-c", script, tmp_path, cwd=checkout).splitlines()[-1]

    assert not [name for name in zipfile.ZipFile(tmp_path / name).namelist() if "build.json" in name]


def test_the_record_in_the_sources_is_filled_in_by_git_alone() -> None:
    record = json.loads((ROOT / "ckstore" / "build.json").read_text(encoding="utf-8"))

    assert record["dirty"] is False
    assert (ROOT / ".git").exists() <= (record["commit"] == "$Format:%H$")
