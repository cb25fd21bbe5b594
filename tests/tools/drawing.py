"""A plugin of pytest: `make test` draws the tests that take most, by the commit (``-p tests.tools.drawing``).

A test runs on every commit unless it is in `COSTS`, a table of the seconds that a case of each long test takes. A test
in the table runs the more rarely the longer its cases take together, but on average on at least one commit in eight. A
matrix is drawn case by case, and has at least one case on each commit. Only a run of all of `tests` draws:
if files, tests or ``-k`` are given, every test runs. `make crash` runs each test that is in the table, and the nightly
profile of Hypothesis all tests.

Usage: python -m tests.tools.drawing REPORT

Brings the table up to date with the JUnit report of a run with `tests.tools.processor`, such as build/tests.xml. A
test that the run did not draw keeps its line as long as its file has it.
"""

from __future__ import annotations

import math
import os
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.coverage import sample_seed
from tests.tools.processor import NAME

ROOT = Path(__file__).resolve().parents[2]
COSTS = Path("tests/tools/costs.txt")
"""Below the root of the sources: lines of seconds and the name of a test."""
LEAST_S = 0.2
"""If the cases of a test take less than this together, all of them run on each commit."""
SHARE_S = 0.1
"""How long any other may take on a commit, on the average of many, if that is not too rare."""
RAREST = 8
ALWAYS = (
    "tests/compat/test_stores.py",
    "tests/docs/test_docs_run.py::test_every_block_of_a_page_runs[README.md]",
    "tests/docs/test_pages.py",
    "tests/docs/test_plain_english.py",
    "tests/docs/test_reference.py",
    "tests/mutants/test_mutants.py::test_every_test_that_catches_a_mutant_is_found_by_its_id",
    "tests/mutants/test_mutants.py::test_no_mutant_uses_an_undefined_name",
    "tests/mutants/test_mutants.py::test_the_guard_that_a_mutant_takes_away_is_still_there",
    "tests/tools/test_confined.py",
    "tests/tools/test_names.py",
)
"""Never drawn: any change of the sources may break what these look at."""


def function_of(name: str) -> str:
    """Return the name of a test without its parameters."""
    return name.partition("[")[0]


def read_costs(file: Path) -> dict[str, float]:
    """Return the seconds of a case of each test in the table; nothing where there is no table."""
    if not file.exists():
        return {}
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return {name: float(seconds) for seconds, name in lines}


def one_in(seconds: float, cases: int) -> int:
    """Return of how many of its cases, or of how many commits, one runs a test with cases of `seconds`."""
    if seconds * cases < LEAST_S:
        return 1
    return min(RAREST if cases == 1 else min(RAREST, cases), math.ceil(seconds * cases / SHARE_S))


def drawn(names: Iterable[str], costs: Mapping[str, float], seed: int) -> list[bool]:
    """Return whether each test runs on a commit with this seed."""
    every = [*names]
    cases: defaultdict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(every):
        cases[function_of(name)].append(place)
    runs = [True] * len(every)
    for function, places in cases.items():
        rarely = one_in(costs.get(function, 0.0), len(places))
        # Not the seed itself: a test that draws its cases by the remainder of the seed would have some never drawn.
        begin = zlib.crc32(f"{seed} {function}".encode())
        for number, place in enumerate(places):
            runs[place] = (begin + number) % rarely == 0 or every[place].startswith(ALWAYS)
    return runs


def draws(config: pytest.Config) -> bool:
    """Return whether all tests are run: no file, no test and no ``-k`` selects some of them."""
    whole = all(Path(config.rootpath, argument) == config.rootpath / "tests" for argument in config.args)
    nightly = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
    return whole and not config.option.keyword and not nightly and sample_seed() is not None


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark of the tests in the table known."""
    config.addinivalue_line("markers", "drawn: takes long: `make test` runs it on some commits, `make crash` always")


def pytest_report_header(config: pytest.Config) -> str:
    """Return how to draw the same tests again."""
    return f"the tests that take most are drawn: CKSTORE_CRASH_SEED={sample_seed()}" if draws(config) else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark the tests in the table before others select by marks, and draw from what these have left."""
    costs = read_costs(config.rootpath / COSTS)
    for item in items:
        if function_of(item.nodeid) in costs:
            item.add_marker("drawn")
    yield
    seed = sample_seed()
    if seed is not None and draws(config):
        every = [*items]
        runs = drawn([item.nodeid for item in every], costs, seed)
        items[:] = [item for item, its in zip(every, runs, strict=True) if its]
        config.hook.pytest_deselected(items=[item for item, its in zip(every, runs, strict=True) if not its])


def measured(report: Path) -> dict[str, list[float]]:
    """Return the seconds of the cases of each test in the report of a run, by the test's name in pytest."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest's own
        module, *classes = _split(case.attrib["classname"])
        function = "::".join([module, *classes, function_of(case.attrib["name"])])
        seconds[function].append(
            sum(float(a.attrib["value"]) for a in case.iter("property") if a.attrib["name"] == NAME)
        )
    return seconds


def _split(classname: str) -> list[str]:
    """Return the file and the classes of which JUnit's name of a class is made."""
    names = classname.split(".")
    files = [at for at, name in enumerate(names) if name.startswith("test_")]
    end = files[0] + 1 if files else len(names)
    return ["/".join(names[:end]) + ".py", *names[end:]]


def table(old: Mapping[str, float], seconds: Mapping[str, list[float]]) -> str:
    """Return the table after a run."""
    costs = {name: cost for name, cost in old.items() if name not in seconds and _is_there(name)}
    for name, cases in seconds.items():
        mean = sum(cases) / len(cases)
        if not name.startswith(ALWAYS) and (name in old or one_in(mean, len(cases)) > 1):
            costs[name] = mean
    return "".join(f"{_rounded(costs[name])} {name}\n" for name in sorted(costs))


def _is_there(name: str) -> bool:
    file, first, *_ = name.split("::")
    path = ROOT / file
    return path.exists() and bool(
        re.search(rf"^\s*(def |class )?{first}\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def _rounded(seconds: float) -> str:
    """Return two digits of it: more would change with each run."""
    return f"{seconds:.{max(0, 1 - math.floor(math.log10(seconds)))}f}" if seconds >= 0.01 else "0.01"


def main(report: Path, file: Path = ROOT / COSTS) -> None:
    """Write the table."""
    file.write_text(table(read_costs(file), measured(report)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
