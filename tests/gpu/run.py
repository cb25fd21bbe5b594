"""``sh tests/gpu/run.sh [OUT]``: install the wheels of the kit, run the tests of this room, measure, and write OUT.

All of it ends within six minutes. OUT (`build/gpu.json`) is written again after each step, so it has what there is
wherever the run is stopped. Nothing but Python's own library is imported here: the rest is in the kit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORMAT = 1
CASES = ("about", "copies", "stall", "fingerprints", "load", "save", "crossed", "stall_large", "cores")
_WHOLE_S = 345.0  # of six minutes, what is left is for the machine's own start and end
_INSTALL_S, _TESTS_S, _CASE_S = 60.0, 150.0, 60.0
_SAID_CHARS = 2_000
_TAIL_CHARS = 60_000
"""Enough for the tracebacks of some tests that failed for one reason."""
_SHOWN = ("-v", "--color=no", "-rfE", "--tb=short", "--durations=10", "--timeout=60")
_OUTCOME = re.compile(r"^(tests/gpu/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
_OPTIONS = ("-p", "pytest_timeout", "-p", "no:cacheprovider", "-W", "default")
"""Plugins and torch of that machine may warn: no plugin is loaded by itself, and no warning is an error."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="sh tests/gpu/run.sh", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build" / "gpu.json")
    parser.add_argument("--wheels", type=Path, help="the folder of the kit's wheels; default: the one beside this tree")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to measure")
    parser.add_argument("--seconds", type=float, default=_WHOLE_S, help="for everything")
    parser.add_argument("--tests", default="tests/gpu", help="what pytest runs")
    return parser.parse_args(arguments)


def wheels_folder() -> Path:
    """Return the folder of the kit: this tree is the kit's own copy, or the checkout that made it."""
    beside = ROOT.parent / "wheels"
    return beside if beside.is_dir() else ROOT / "build" / "gpu-kit" / "wheels"


class Run:
    """One run, and what it found so far.

    Args:
        out: The file that is written after each step.
        folder: For the packages and for the stores that are measured.
        seconds: After which nothing is started any more, and what still runs is killed.
    """

    def __init__(self, out: Path, folder: Path, seconds: float) -> None:
        self._out = out
        self._folder = folder
        self._end_s = time.monotonic() + seconds
        self._begun_s = time.monotonic()
        self._environment = dict(os.environ)
        self.found: dict[str, Any] = {
            "format": FORMAT,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "cases": {},
            "tests": {},
        }
        self.write()

    def install(self, wheels: Path) -> None:
        """Put the wheels into a folder of this run, before what the machine has."""
        site = self._folder / "site"
        names = sorted(map(str, wheels.glob("*.whl")))
        if not names:
            self._keep("install", f"no wheels in {wheels}; run make gpu-kit where there is a network")
            return
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
        options = ["--no-index", "--no-deps", "--no-compile", "--target", str(site)]
        status, said = self._run([*pip, *options, *names], _INSTALL_S)
        paths = [site, ROOT, ROOT / "cli", ROOT / "migrations"]
        self._environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        self._keep("install", "" if status == 0 else said)

    def test(self, what: str) -> None:
        """Run the tests; those that ended before the time did are in the result."""
        self._environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command = [sys.executable, "-m", "pytest", *_SHOWN, *_OPTIONS, what]
        status, said = self._run(command, _TESTS_S)
        self.found["tests"] = {name: outcome.lower() for name, outcome in _OUTCOME.findall(said)}
        self._keep("pytest", "" if status == 0 else said[-_TAIL_CHARS:])

    def measure(self, case: str) -> None:
        """Run one case in a process of its own."""
        command = [sys.executable, "-m", "tests.gpu.measure", case, str(self._folder)]
        status, said = self._run(command, _CASE_S)
        lines = [line for line in said.splitlines() if line.startswith("{")]
        figures = json.loads(lines[-1]) if status == 0 and lines else {"error": said[-_TAIL_CHARS:]}
        if status == 0 and (beside := "\n".join(line for line in said.splitlines() if line not in lines)):
            figures["said"] = beside[-_SAID_CHARS:]  # what was logged, as that memory cannot be pinned
        self.found["cases"][case] = figures
        self.write()

    def write(self) -> None:
        """Replace the file by what is known now."""
        self.found["seconds"] = round(time.monotonic() - self._begun_s, 1)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        beside = self._out.with_name(f"{self._out.name}.part")
        beside.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        beside.replace(self._out)

    def _keep(self, step: str, error: str) -> None:
        if error:
            self.found.setdefault("errors", {})[step] = error
        self.write()

    def _run(self, command: Sequence[str], most_s: float) -> tuple[int | None, str]:
        """Run a program with all that it starts; return its status, None if it was killed, and what it printed."""
        limit_s = min(most_s, self._end_s - time.monotonic())
        if limit_s <= 0:
            return None, "not run: no time was left"
        log = self._folder / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=file, stderr=file, start_new_session=True
            )
            status: int | None = None
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                file.write(f"\nkilled after {limit_s:.0f} s\n".encode())
            finally:
                # Savers and forks belong to its group; a CUDA call that hangs ends with SIGKILL only.
                _kill_group(process.pid)
                process.wait()
        return status, log.read_text(encoding="utf-8", errors="replace")


def summary(found: Mapping[str, Any]) -> str:
    """Say in a few lines what a run found."""
    cases = found["cases"]
    card = cases.get("about", {}).get("card")
    outcomes = list(found["tests"].values())
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "no test ended"
    failed = [name for name, figures in cases.items() if "error" in figures]
    lines = [
        f"on {card['name']}" if card else "no CUDA device: the CPU forms ran, and their seconds mean nothing",
        f"tests: {counts}",
        f"cases: {len(cases) - len(failed)} measured{''.join(f', {name} failed' for name in failed)}",
        *(
            f"{name}: what was loaded is not what was saved"
            for name, case in cases.items()
            if not case.get("same", True)
        ),
        *(f"{step}: {text.strip().splitlines()[-1]}" for step, text in found.get("errors", {}).items()),
    ]
    return "\n".join(lines)


def passed(found: Mapping[str, Any]) -> bool:
    """Whether every step ended well, and every state that was compared came back the same."""
    figures = found["cases"].values()
    return "errors" not in found and all("error" not in case and case.get("same", True) for case in figures)


def main(arguments: Sequence[str]) -> int:
    """Do all steps; return 1 if one of them failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is killed, and OUT is whole
    options = parse(arguments)
    out: Path = options.out.absolute()
    with tempfile.TemporaryDirectory(prefix="ckstore-gpu-", dir=options.dir.resolve()) as folder:
        run = Run(out, Path(folder), options.seconds)
        run.install((options.wheels or wheels_folder()).resolve())
        run.measure(CASES[0])
        run.test(options.tests)
        for case in CASES[1:]:
            run.measure(case)
    print(f"{summary(run.found)}\nwrote {out}", flush=True)
    return 0 if passed(run.found) else 1


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
