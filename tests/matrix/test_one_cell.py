"""One cell in short: this Python and its torch, the other packages at their lowest versions."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.version import Version

from tests.matrix.cells import EXTRAS, LOWEST, NEWEST, ROOT, Cell, direct, lower_bounds, project
from tests.matrix.environment import TOOLS, CannotInstall, Environment, find_uv, pins
from tests.matrix.results import run_tests
from tests.support.requirements import require

TESTS = ("tests/catalog/test_file.py", "tests/cli/test_log.py", "tests/containers", "tests/format/test_reader.py")
# As the package registry is configured: the fixtures replace HOME.
_HOME = os.environ.get("HOME", "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_lowest_versions_work_with_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_uv()
    except CannotInstall as error:
        require(condition=False, reason=str(error))
    monkeypatch.setenv("HOME", _HOME)
    table = project()
    listed = direct(table, EXTRAS)
    # torch takes gigabytes, so it is the one of this environment, with NumPy, which it was compiled for.
    names = sorted(listed.keys() - {"torch", "numpy"})
    environment = Environment(tmp_path / "cell", tmp_path / "cache")
    environment.uv("venv", "--python", sys.executable, str(environment.folder))
    wheels = [word for name in names for word in ("--only-binary", name)]
    environment.install("--resolution", "lowest-direct", *wheels, *(str(listed[name]) for name in names), *pins(TOOLS))
    environment.install("--no-deps", "--editable", str(ROOT))
    site = next((environment.folder / "lib").glob("python*/site-packages"))
    behind = sysconfig.get_path("purelib")
    (site / "project.pth").write_text(f"import site; site.addsitedir({behind!r})\n", encoding="utf-8")
    shutil.rmtree(environment.cache)

    cell = Cell(f"{sys.version_info.major}.{sys.version_info.minor}", NEWEST, LOWEST)
    done = run_tests(cell, environment.python, tmp_path / "reports", workers=1, tests=TESTS)

    assert done.failures == []
    assert done.passed > 100
    # The others may have no wheel of their lowest version for this Python.
    pure = ("click", "fsspec", "rich", "sqlite-utils")
    assert {name: Version(done.versions[name]) for name in pure} == {
        name: Version(lower_bounds(table)[name]) for name in pure
    }
