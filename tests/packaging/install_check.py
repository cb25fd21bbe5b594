"""``make dist-check``: install the packages of dist/ into empty environments, and use them as a user would.

For each Python there are two environments: the core, and the core with torch. The wheel goes into both, and then the
source package replaces it in the core's. Nothing else is installed than what pip takes for them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ckstore.build_info import RECORD, BuildInfo
from tests.packaging import dist
from tests.packaging.sbom import NOT_OF_USERS

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("", "torch")
NO_TORCH = "error: the demo needs torch, which is not installed\nhint: pip install 'ckstore[torch]'\n"
_TIMEOUT_S = 1200
"""From a slow index torch takes minutes."""


class CheckFailed(Exception):
    """A command in an environment did not do what it should. The message has its output."""


def run(*command: str | Path, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command without what the development environment sets.

    Raises:
        CheckFailed: It ended with another status, or did not end.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CKSTORE_", "VIRTUAL"))}
    words = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=cwd, env=env, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckFailed(f"{words}: {error}") from error
    if done.returncode != status:
        raise CheckFailed(f"{words} ended with {done.returncode} instead of {status}:\n{done.stdout}{done.stderr}")
    return done


def expect(condition: object, message: str) -> None:
    """Raise `CheckFailed` with a message unless a condition is true."""
    if not condition:
        raise CheckFailed(message)


def packages(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the source package of a directory that `make dist` made, after a check of the digests.

    Raises:
        SystemExit: There are none, or a digest is another one.
    """
    sums = folder / dist.SUMS
    if not sums.exists():
        raise SystemExit(f"error: {sums} does not exist: run make dist")
    for line in sums.read_text(encoding="ascii").splitlines():
        digest, name = line.split("  ")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"error: {folder / name} is not the file that {sums} has the digest of: run make dist")
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def build_of(wheel: Path) -> BuildInfo:
    """Return the version and the commit that a wheel records."""
    with zipfile.ZipFile(wheel) as archive:
        return BuildInfo(wheel.name.split("-")[1], **json.loads(archive.read(f"ckstore/{RECORD}")))


def tools() -> set[str]:
    """Return the canonical names of the packages that only developers need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return {canonicalize_name(Requirement(line).name) for extra in NOT_OF_USERS for line in extras[extra]}


def pip_of(python: Path) -> tuple[str | Path, ...]:
    """Return the command of this process's pip for another environment. Those are empty, also of pip."""
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)


def check_installed(python: Path, extra: str, work: Path) -> None:
    """Check that an environment has what the extra brings, and no tool of the development.

    Raises:
        CheckFailed: It has something else.
    """
    listed = json.loads(run(*pip_of(python), "list", "--format=json", cwd=work).stdout)
    names = {canonicalize_name(one["name"]) for one in listed}
    expect(not names & tools(), f"development packages were installed: {', '.join(sorted(names & tools()))}")
    for name in ("torch", "numpy"):
        expect((name in names) == (extra == "torch"), f"{name} is {'' if name in names else 'not '}installed")
    run(*pip_of(python), "check", cwd=work)


def smoke(scripts: Path, build: BuildInfo, work: Path, *, has_torch: bool) -> None:
    """Use an installed ckstore: version, import, a store with a committed file, and the demo.

    Args:
        scripts: The directory of ``python`` and ``ckstore``.
        build: What the command line must print.
        work: An empty directory.
        has_torch: Whether the demo runs, or says what to install.

    Raises:
        CheckFailed: A step failed.
    """
    ckstore = scripts / "ckstore"
    told = run(ckstore, "--version", cwd=work).stdout
    expect(told == f"ckstore {build}\n", f"--version printed {told!r}, and the wheel is of {build}")
    script = "import sys, ckstore, ckstore_cli, ckstore_migrations; print(ckstore.__file__, 'torch' in sys.modules)"
    told = run(scripts / "python", "-c", script, cwd=work).stdout
    expect(told.startswith(str(scripts.parent)) and told.endswith(" False\n"), f"import ckstore gave {told!r}")
    file = work / "file.bin"
    file.write_bytes(os.urandom(3 * 2**20))
    (work / "store").mkdir()
    for command in (
        "init store",
        "--store store commit file.bin --step 1",
        "--store store log",
        "--store store verify",
        "--store store checkout 1 restored",
        "--store store delete 1",
        "--store store gc --now",
    ):
        run(ckstore, *command.split(), cwd=work)
    expect((work / "restored" / "file.bin").read_bytes() == file.read_bytes(), "the checkout differs from the file")
    blobs = [path for path in (work / "store" / "blobs").rglob("*") if path.is_file()]
    expect(not blobs, f"gc left {blobs}")
    if has_torch:
        told = run(ckstore, "demo", cwd=work).stdout
        expect(told.strip(), "the demo printed nothing")
    else:
        refused = run(ckstore, "demo", cwd=work, status=1)
        expect(refused.stderr == NO_TORCH, f"without torch the demo printed {refused.stderr!r}")


def check_environment(python: str, extra: str, wheel: Path, sdist: Path, folder: Path) -> None:
    """Make an environment, and use each package in it.

    Args:
        python: The interpreter of the environment.
        extra: Of ckstore, or an empty string.
        wheel: What is installed.
        sdist: Replaces the wheel in an environment without torch.
        folder: A directory for the environment.

    Raises:
        CheckFailed: A step failed.
    """
    venv = folder / "venv"
    run(python, "-m", "venv", "--without-pip", venv, cwd=folder)  # Debian's Python cannot install pip
    scripts = venv / "bin"
    pip = (*pip_of(scripts / "python"), "install", "--quiet")
    # Of the versions that the ranges allow, the tested ones: this checks the packages, and the index only installs.
    tested = ("-c", ROOT / "constraints.txt")
    for package in (wheel,) if extra else (wheel, sdist):
        again = ("--force-reinstall", "--no-deps") if package == sdist else ()
        name = f"ckstore[{extra}] @ {package.as_uri()}" if extra else package
        run(*pip, *tested, *again, name, cwd=folder)
        work = folder / package.name
        work.mkdir()
        check_installed(scripts / "python", extra, work)
        smoke(scripts, build_of(wheel), work, has_torch=bool(extra))


def version_of(python: str) -> str:
    """Return the version of an interpreter.

    Raises:
        CheckFailed: It does not run.
    """
    return run(python, "-c", "import platform; print(platform.python_version())", cwd=ROOT).stdout.strip()


def find_pythons() -> list[str]:
    """Return an interpreter of each minor version that ckstore supports and this machine has, on PATH or of pyenv."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    minors = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = []
    for minor in minors:
        candidates = [f"python{minor}", *map(str, sorted(pyenv.glob(f"{minor}.*/bin/python")))]
        working = [one for one in candidates if shutil.which(one) and _runs(one, minor)]
        if working:
            found.append(working[0])
        else:
            print(f"note: no Python {minor} was found", flush=True)
    return found


def _runs(python: str, minor: str) -> bool:
    """Whether it is an interpreter of that version. A command of pyenv may refuse to be one."""
    try:
        return version_of(python).startswith(f"{minor}.")
    except CheckFailed:
        return False


def main(arguments: Sequence[str]) -> None:
    """Check every environment, and end with 1 if one failed."""
    parser = argparse.ArgumentParser(prog="make dist-check", description=__doc__)
    parser.add_argument("dist", type=Path, help="what make dist made")
    parser.add_argument("folder", type=Path, help="for the environments; each is removed if it passed")
    parser.add_argument("--python", action="append", default=[], help="an interpreter; default: all that are found")
    options = parser.parse_args(arguments)
    wheel, sdist = packages(options.dist.resolve())
    try:
        versions = {python: version_of(python) for python in options.python or find_pythons()}
    except CheckFailed as error:
        parser.error(str(error))
    failed = 0
    for python, version in versions.items():
        for extra in EXTRAS:
            name = f"Python {version}, {f'with {extra}' if extra else 'core'}"
            folder = options.folder.resolve() / f"{version}-{extra or 'core'}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            begun_s = time.monotonic()
            try:
                check_environment(python, extra, wheel, sdist, folder)
            except CheckFailed as error:
                failed += 1
                print(f"FAILED {name}: {error}", flush=True)
            else:
                print(f"passed {name}: {time.monotonic() - begun_s:.0f} s", flush=True)
                shutil.rmtree(folder)
    count = len(versions) * len(EXTRAS)
    print(f"{count - failed} of {count} environments passed")
    sys.exit(1 if failed or not count else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
