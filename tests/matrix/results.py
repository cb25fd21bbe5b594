"""Run the tests of a cell in its environment, and keep the counts and versions of every cell in one file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree as ET

from tests.matrix.cells import ROOT, Cell, lower_bounds, project

FILE = Path("tests/matrix/results.json")
"""Below the root of the sources."""
TESTS_S = 1800
"""The most seconds that the tests of a cell may take."""
TESTS = (
    "tests/catalog",
    "tests/cli",
    "tests/codecs",
    "tests/compat",
    "tests/containers",
    "tests/format",
    "tests/integrations/test_dcp.py",
    "tests/integrations/test_directories.py",
    "tests/integrations/test_fsspec.py",
    "tests/migrations",
    "tests/model",
    "tests/ops/compact/test_compact.py",
    "tests/ops/read",
    "tests/ops/save",
    "tests/ranks/test_without_group.py",
    "tests/remote/test_engine.py",
    "tests/remote/test_pull.py",
    "tests/remote/test_push.py",
    "tests/saver",
    "tests/states/test_states.py",
    "tests/states/test_values.py",
    "tests/tensors",
    "tests/training",
)
"""The tests of every cell: those that a version of Python, torch, SQLite or an extra can break."""
FRAMEWORK_TESTS = (
    "tests/integrations/test_accelerate.py",
    "tests/integrations/test_deepspeed.py",
    "tests/integrations/test_export_pretrained.py",
    "tests/integrations/test_extra_values.py",
    "tests/integrations/test_lightning.py",
    "tests/integrations/test_lightning_exact.py",
    "tests/integrations/test_strict_loads.py",
    "tests/integrations/test_torch_checkpointing.py",
    "tests/integrations/test_transformers.py",
    "tests/integrations/test_transformers_native.py",
    "tests/integrations/test_transformers_trainer.py",
    "tests/ops/read/test_export_transformers.py",
)
# Each takes many seconds of training, which no version changes; `make test` runs it.
LEFT_OUT = (
    "tests/cli/test_check_resume_command.py",
    "tests/cli/test_demo.py",
    "tests/training/test_resume_check.py",
)
MARKS = "not bench and not crash and not endurance and not gpu and not remote and not soak"
_VERSIONS = """
import json, platform, sqlite3, sys
from importlib.metadata import distributions
# The first of two with one name is imported, so it is entered last.
found = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in [*distributions()][::-1]}
json.dump({**found, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}, sys.stdout)
"""


class CannotRun(Exception):
    """The tests of a cell gave no report."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one cell.

    Attributes:
        name: Of the cell.
        versions: Package, canonical name -> version; also ``python`` and ``sqlite``.
        passed: Number of tests.
        failed: Number of tests that failed or could not be set up.
        skipped: Number of tests.
        seconds: Of the tests, without the installation.
        failures: Names of the failed tests.
    """

    name: str
    versions: dict[str, str]
    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: list[str]


def versions(python: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that an environment has, of its Python and of its SQLite."""
    done = subprocess.run([python, "-I", "-c", _VERSIONS], check=True, capture_output=True, text=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout)
    return {name: found[name] for name in ("python", "sqlite", *names) if name in found}


def run_tests(cell: Cell, python: Path, folder: Path, *, workers: int, tests: Sequence[str] = ()) -> Result:
    """Run the tests of a cell with an interpreter; the report and the output are written below `folder`.

    Args:
        cell: It decides whether the tests of frameworks run.
        python: Interpreter of the environment.
        folder: It is made if it does not exist.
        workers: Number of processes.
        tests: Files and folders; those of the cell if there are none.

    Raises:
        CannotRun: pytest wrote no report, or took longer than `TESTS_S`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report, output = folder / f"{cell.name}.xml", folder / f"{cell.name}.txt"
    report.unlink(missing_ok=True)
    tests = tests or ((*TESTS, *FRAMEWORK_TESTS) if cell.frameworks else TESTS)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "--dist", "worksteal"]
    command += ["-m", MARKS, f"--junitxml={report}", *(f"--deselect={name}" for name in LEFT_OUT), *tests]
    begun = monotonic()
    with output.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file, env=_environment(), start_new_session=True
        )
        try:
            process.wait(timeout=TESTS_S)
        except subprocess.TimeoutExpired as error:
            raise CannotRun(f"the tests took longer than {TESTS_S} s; see {output}") from error
        finally:
            # Workers of a pytest that was killed would go on.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not report.exists():
        raise CannotRun(f"pytest exited with status {process.returncode} and wrote no report; see {output}")
    return _result(cell, versions(python, lower_bounds(project())), report, monotonic() - begun)


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables that change what is tested."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CKSTORE_", "PYTHON"))}
    # A machine of any size gives the same results, and a change does not fail by what an earlier one drew.
    return {**kept, "OMP_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "ci"}


def _result(cell: Cell, found: dict[str, str], report: Path, seconds: float) -> Result:
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest's own
    failures = [_test_name(case) for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = len(set(failures))
    passed = len(cases) - skipped - len(failures)
    return Result(cell.name, found, passed, failed, skipped, round(seconds, 1), sorted(set(failures)))


def _test_name(case: ET.Element) -> str:
    return f"{case.attrib['classname']}::{case.attrib['name']}"


def load(file: Path) -> dict[str, Result]:
    """Return the kept results by the name of their cell; none if there is no file."""
    if not file.exists():
        return {}
    return {one["name"]: Result(**one) for one in json.loads(file.read_text(encoding="utf-8"))}


def keep(file: Path, results: dict[str, Result]) -> None:
    """Write the results, in the order of the dict."""
    listed = [asdict(result) for result in results.values()]
    file.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")
