"""What `make dist-check` refuses; `test_wheel` runs the check itself, in an environment without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging import dist, install_check
from tests.packaging.install_check import CheckFailed


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a directory as `make dist` writes it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("ckstore-1.whl", "ckstore-1.tar.gz", "ckstore.cdx.json"):
        (packages / name).write_text(name, encoding="utf-8")
    dist.write(packages, tmp_path / "dist")
    return tmp_path / "dist"


def test_the_packages_are_those_that_the_digests_are_of(made: Path) -> None:
    assert [path.name for path in install_check.packages(made)] == ["ckstore-1.whl", "ckstore-1.tar.gz"]

    (made / "ckstore-1.whl").write_text("another one", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"ckstore-1\.whl is not the file that .*SHA256SUMS has the digest of"):
        install_check.packages(made)


def test_without_packages_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not exist: run make dist"):
        install_check.packages(tmp_path)


def test_a_tool_of_the_development_in_an_environment_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"development packages were installed: .*hatchling.*pytest"):
        install_check.check_installed(Path(sys.executable), "torch", tmp_path)


def test_tools_are_packages_that_only_developers_need() -> None:
    assert {"pytest", "mkdocs", "deepspeed"} <= install_check.tools()
    assert not {"click", "torch", "numpy", "rich"} & install_check.tools()


def test_a_command_that_ends_otherwise_is_reported_with_its_output(tmp_path: Path) -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    with pytest.raises(CheckFailed, match=r"(?s)ended with 3 instead of 0:\nout\nerr"):
        install_check.run(sys.executable, "-c", script, cwd=tmp_path)
    with pytest.raises(CheckFailed, match="No such file"):
        install_check.run(tmp_path / "nothing", cwd=tmp_path)
    assert install_check.run(sys.executable, "-c", script, cwd=tmp_path, status=3).stdout == "out\n"


def test_an_interpreter_that_does_not_run_is_a_usage_error(made: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        install_check.main([str(made), str(tmp_path / "work"), "--python", str(tmp_path / "nothing")])

    assert raised.value.code == 2


def test_the_interpreter_of_the_tests_is_among_those_that_are_found() -> None:
    versions = [install_check.version_of(python) for python in install_check.find_pythons()]

    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in {version.rpartition(".")[0] for version in versions}
