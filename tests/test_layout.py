"""The tree is laid out as designed, and says nothing about the machines that it was made on."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

from tests.support.requirements import require

ROOT = Path(__file__).resolve().parents[1]

FOLDERS = {"ckstore", "cli", "docs", "examples", "findings", "migrations", "tests"}
FILES = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
}
HIDDEN = {".ci", ".gitattributes", ".gitignore", ".pre-commit-config.yaml"}

# Put together here, so that this file does not contain them. The first are paths of the machines on
# which the project is made, the others hosts of package registries (which users choose themselves).
FORBIDDEN = [
    re.compile(pattern)
    for pattern in (
        r"/work" + r"/(?:main|shared|\.library)",
        r"/opt" + r"/(?:wheels|pypi)",
        r"/tmp/" + r"(?:venv0|bash_jobs)",
        r"files\." + r"pythonhosted\.org",
        r"(?:^|[^.\w])pypi\." + r"org/simple",
        r"deb\." + r"debian\.org",
        r"download\." + r"pytorch\.org",
    )
]


def tracked() -> list[str]:
    """Return the paths that git tracks or would track; skip outside a checkout."""
    require((ROOT / ".git").exists(), "not a git checkout: nothing tells sources from leftovers")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        # A checkout that belongs to another user is still only listed here.
        env={
            **os.environ,
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        },
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


def test_the_top_level_is_as_designed() -> None:
    paths = tracked()

    assert {path.split("/")[0] for path in paths if "/" in path} - HIDDEN == FOLDERS
    assert {path for path in paths if "/" not in path} - HIDDEN == FILES
    assert {path.split("/")[0] for path in paths} >= HIDDEN


def test_cli_and_migrations_are_source_roots_of_one_package_each() -> None:
    assert {path.name for path in (ROOT / "cli").iterdir() if path.is_dir()} == {"ckstore_cli"}
    assert {path.name for path in (ROOT / "migrations").iterdir() if path.is_dir()} == {"ckstore_migrations"}


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert re.search(r"^(?:exec )?make test$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(r"^export CKSTORE_CI=1$", script.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_pinned_version_is_exact_and_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[<>=\[]", line)[0].lower() for line in wanted}

    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert names <= {pin.split("==")[0].lower() for pin in pins}


def test_no_file_shows_the_machine_that_it_was_made_on() -> None:
    found = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a stored example of a binary format
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{path}:{number}: {line.strip()}" for rule in FORBIDDEN if rule.search(line)]

    assert found == []
