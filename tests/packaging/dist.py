"""``make dist``: build the packages of a commit twice, and keep them in dist/ if both builds have the same bytes.

Both builds use a clean export of the commit, and its date. They differ in all that must not matter: the directory, the
umask, the time zone, the locale, the order of hashes, the times of the sources, and whether the wheel is made from the
source package or from the sources.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ckstore.model.words import counted
from tests.packaging.build_hook import SBOM

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"
_TIMEOUT_S = 300


class Surroundings(NamedTuple):
    """What surrounds a build and must not change its result."""

    folder: str
    umask: int
    variables: Mapping[str, str]
    sources_from_sdist: bool
    """Whether the wheel is built from the source package, as an installer does it."""


FIRST = Surroundings("first", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}, sources_from_sdist=True)
SECOND = Surroundings(
    "second/further/below",
    0o077,
    {"TZ": "Asia/Kolkata", "LC_ALL": "POSIX", "PYTHONHASHSEED": "2", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    sources_from_sdist=False,
)


def build(commit: str, time_s: int, base: Path, surroundings: Surroundings, *, root: Path = ROOT) -> Path:
    """Build the packages and the SBOM of a commit, and return the directory that has them.

    Args:
        commit: Its full name.
        time_s: The time that the packages record, in seconds since 1970.
        base: A directory for the sources and the packages.
        surroundings: Of the build.
        root: The repository.

    Raises:
        SystemExit: A command failed or did not end. The error has its output.
    """
    folder = base / surroundings.folder
    code, out = folder / "code", folder / "packages"
    for made in (code, out):
        made.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHON", "LC_"))}
    env |= {**surroundings.variables, "SOURCE_DATE_EPOCH": str(time_s), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*command: str | Path, cwd: Path) -> bytes:
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                cwd=cwd,
                env=env,
                umask=surroundings.umask,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"error: {' '.join(map(str, command))} did not end in {_TIMEOUT_S} s") from error
        if done.returncode != 0:
            told = (done.stdout + done.stderr).decode(errors="replace")
            raise SystemExit(f"error: {' '.join(map(str, command))} failed with {done.returncode}:\n{told}")
        return done.stdout

    archive = folder / "code.tar"
    run("git", "-C", root, "archive", "--format=tar", "-o", archive, commit, cwd=folder)
    # Without these options root's tar ignores the umask and sets the times of the archive.
    run("tar", "-xf", archive, "--no-same-permissions", "--touch", cwd=code)
    (code / SBOM).write_bytes(run(sys.executable, "-m", "tests.packaging.sbom", cwd=code))
    order = () if surroundings.sources_from_sdist else ("--sdist", "--wheel")
    run(sys.executable, "-m", "build", "--no-isolation", *order, "--outdir", out, code, cwd=folder)
    shutil.copyfile(code / SBOM, out / SBOM)
    return out


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, in hexadecimal digits, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def compare(first: Path, second: Path) -> None:
    """Compare two directories of packages.

    Raises:
        SystemExit: They differ. The error names each file, and the members of packages that differ.
    """
    one, other = digests(first), digests(second)
    lines = []
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            lines.append(f"{name}: {one.get(name, 'missing')} and {other.get(name, 'missing')}")
            lines += [f"  {line}" for line in _differences(first / name, second / name)]
    if lines:
        raise SystemExit("\n".join(["error: two builds of the same commit differ", *lines]))


def _differences(one: Path, other: Path) -> list[str]:
    """Return the properties in which members of two packages differ, each with the first such member."""
    if not (one.exists() and other.exists() and one.suffix in {".whl", ".gz"}):
        return []
    before, after = _members(one), _members(other)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name, {}), after.get(name, {})
        for key in a | b:
            if a.get(key) != b.get(key):
                found[key].append(f"{name}: {a.get(key)} and {b.get(key)}")
    lines = [f"{key} of {counted(len(members), 'member')}, such as {members[0]}" for key, members in found.items()]
    return lines or ["no property of a member: the order or the compression differs"]


def _members(package: Path) -> dict[str, dict[str, object]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return {
                one.filename: {"content": one.CRC, "time": one.date_time, "mode": oct(one.external_attr >> 16)}
                for one in wheel.infolist()
            }
    with tarfile.open(package) as sdist:
        found: dict[str, dict[str, object]] = {}
        for one in sdist.getmembers():
            file = sdist.extractfile(one)
            content = "" if file is None else hashlib.sha256(file.read()).hexdigest()[:12]
            owner = (one.uid, one.gid, one.uname, one.gname)
            found[one.name] = {"content": content, "time": one.mtime, "mode": oct(one.mode), "owner": owner}
        return found


def validate(file: Path) -> None:
    """Check the SBOM against the schema of its version.

    Raises:
        SystemExit: It does not fit.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_7).validate_str(file.read_text(encoding="utf-8"))
    if wrong is not None:
        raise SystemExit(f"error: {file.name} does not fit the schema of CycloneDX 1.7: {wrong}")


def ask_git(*arguments: str) -> str:
    """Return what git prints in the repository of this file.

    Raises:
        CalledProcessError: git failed.
    """
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.stdout.strip()


def write(packages: Path, folder: Path) -> list[str]:
    """Replace a directory by the packages and a file with their digests, whose lines are returned."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(packages, folder)
    lines = [f"{digest}  {name}" for name, digest in digests(folder).items()]
    (folder / SUMS).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Make dist/."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    parser.add_argument("folder", type=Path, help="replaced by the packages, the SBOM and their digests")
    parser.add_argument("--commit", default="HEAD", help="what to build (default: HEAD)")
    options = parser.parse_args(arguments)
    commit = ask_git("rev-parse", "--verify", f"{options.commit}^{{commit}}")
    time_s = int(ask_git("show", "-s", "--format=%ct", commit))
    if ask_git("status", "--porcelain"):
        print(f"note: the checkout has uncommitted changes, which are not in the packages of {commit}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ckstore-dist-") as name:
        outs = [build(commit, time_s, Path(name), surroundings) for surroundings in (FIRST, SECOND)]
        compare(*outs)
        validate(outs[0] / SBOM)
        lines = write(outs[0], options.folder)
    print(f"two builds of {commit} are equal, and {options.folder} has:", *lines, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
