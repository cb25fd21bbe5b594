"""What `make dist` makes: two builds of a commit have the same bytes, and a difference is an error that names it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from ckstore.version import __version__
from tests.packaging import dist
from tests.packaging.build_hook import SBOM
from tests.support.once import once
from tests.support.requirements import require, require_program

ROOT = Path(__file__).resolve().parents[2]
TIME_S = 1_700_000_000
WHEEL = f"ckstore-{__version__}-py3-none-any.whl"
SDIST = f"ckstore-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def commit() -> str:
    require((ROOT / ".git").exists(), "not a git checkout: there is no commit to build")
    require_program("git")
    return dist.ask_git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def first(commit: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        dist.build(commit, TIME_S, folder, dist.FIRST).rename(folder / "packages")

    return once(tmp_path_factory, "dist", build) / "packages"


def assert_recorded(folder: Path, commit: str) -> None:
    """Check that the packages have the commit, the SBOM and the time."""
    sbom = (folder / SBOM).read_bytes()
    with zipfile.ZipFile(folder / WHEEL) as wheel:
        assert json.loads(wheel.read("ckstore/build.json")) == {"commit": commit, "dirty": False}
        assert wheel.read(f"ckstore-{__version__}.dist-info/sboms/{SBOM}") == sbom
        assert {one.date_time for one in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    with tarfile.open(folder / SDIST) as sdist:
        (record,) = (sdist.extractfile(one) for one in sdist if one.name.endswith("/ckstore/build.json"))
        (inside,) = (sdist.extractfile(one) for one in sdist if one.name.endswith(f"/{SBOM}"))
        assert record is not None
        assert json.loads(record.read()) == {"commit": commit, "dirty": False}
        assert inside is not None
        assert inside.read() == sbom
    assert json.loads(sbom)["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


@pytest.mark.slow
def test_two_builds_of_a_commit_in_different_surroundings_are_equal_and_record_it(
    first: Path, commit: str, tmp_path: Path
) -> None:
    second = dist.build(commit, TIME_S, tmp_path, dist.SECOND)

    dist.compare(first, second)
    assert dist.digests(second).keys() == {WHEEL, SDIST, SBOM}
    assert_recorded(second, commit)


@pytest.mark.slow
def test_a_build_with_another_time_is_reported(first: Path, commit: str, tmp_path: Path) -> None:
    later = dist.build(commit, TIME_S + 2, tmp_path, dist.FIRST)

    with pytest.raises(SystemExit) as raised:
        dist.compare(first, later)

    text = str(raised.value)
    assert text.startswith("error: two builds of the same commit differ\n")
    assert re.findall(r"^(ckstore.*): [0-9a-f]{64} and [0-9a-f]{64}$", text, re.MULTILINE) == [WHEEL, SDIST, SBOM]
    assert re.search(r"  time of \d{3} members, such as .*: \(2023, 11, .*20\) and \(2023, 11, .*22\)", text)
    assert re.search(rf"  time of \d{{4}} members, such as .*: {TIME_S} and {TIME_S + 2}", text)


def test_the_directory_is_replaced_and_has_the_digests_of_its_files(tmp_path: Path) -> None:
    folder = wheel_of(tmp_path / "dist")
    packages = sdist_of(tmp_path / "packages", 0)

    lines = dist.write(packages, folder)

    assert {path.name for path in folder.iterdir()} == {"a.tar.gz", dist.SUMS}
    assert (folder / dist.SUMS).read_text(encoding="ascii").splitlines() == lines
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", dist.SUMS], check=True, timeout=60, cwd=folder)


def wheel_of(
    folder: Path, time: tuple[int, ...] = (2020, 2, 2, 0, 0, 0), content: str = "x", mode: int = 0o644
) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
        info = zipfile.ZipInfo("a.py", time)  # type: ignore[arg-type] # a tuple of six
        info.external_attr = mode << 16
        wheel.writestr(info, content)
    return folder


def sdist_of(folder: Path, uid: int) -> Path:
    folder.mkdir()
    with tarfile.open(folder / "a.tar.gz", "w") as sdist:
        info = tarfile.TarInfo("a/a.py")
        info.uid = uid
        sdist.addfile(info, io.BytesIO())
    return folder


def test_a_difference_is_told_by_member_and_property(tmp_path: Path) -> None:
    usual = wheel_of(tmp_path / "usual")
    dist.compare(usual, wheel_of(tmp_path / "same"))

    for name, other, wanted in (
        ("time", wheel_of(tmp_path / "1", time=(2021, 2, 2, 0, 0, 0)), r"\(2020, 2, .*\) and \(2021, 2, "),
        ("mode", wheel_of(tmp_path / "2", mode=0o600), "0o644 and 0o600"),
        ("content", wheel_of(tmp_path / "3", content="y"), r"\d+ and \d+"),
    ):
        with pytest.raises(SystemExit, match=rf"{name} of 1 member, such as a\.py: {wanted}") as raised:
            dist.compare(usual, other)
        assert str(raised.value).count("\n") == 2

    with pytest.raises(SystemExit, match=r"owner of 1 member, such as a/a\.py: \(0, 0, '', ''\) and \(5, 0, '', ''\)"):
        dist.compare(sdist_of(tmp_path / "root", 0), sdist_of(tmp_path / "user", 5))


def test_a_missing_package_is_a_difference(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()

    with pytest.raises(SystemExit, match=r"a\.whl: missing and [0-9a-f]{64}"):
        dist.compare(tmp_path / "none", wheel_of(tmp_path / "one"))


def test_a_command_that_fails_is_an_error_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)error: git .* archive .* failed with 128:.*(nowhere|not a valid)"):
        dist.build("nowhere", TIME_S, tmp_path, dist.FIRST)
