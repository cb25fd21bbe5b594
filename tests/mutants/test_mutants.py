"""Each guard of the protocol is needed: the code without it is caught.

Those that break the trace law are run here, those that fail another test by ``make mutants``: each runs that test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.laws import LAWS
from tests.mutants import finding
from tests.mutants.finding import definitions
from tests.mutants.mutant import Mutant
from tests.mutants.runner import LISTS, MUTANTS, PAGE, ROOT, judge, page
from tests.support.coverage import covered, sample_seed


@pytest.mark.parametrize("name", MUTANTS)
def test_the_guard_that_a_mutant_takes_away_is_still_there(name: str) -> None:
    mutant = MUTANTS[name]
    file, sources = mutant.changed()
    test, _, function = mutant.caught_by.partition("::")

    compile(sources, file, "exec")
    assert not function or f"def {function.partition('[')[0]}(" in (ROOT / test).read_text(encoding="utf-8")


def test_no_mutant_uses_an_undefined_name(tmp_path: Path) -> None:
    # It would fail its test for that reason, with or without the guard.
    for name, mutant in MUTANTS.items():
        (tmp_path / f"{name}.py").write_text(mutant.changed()[1], encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_every_test_that_catches_a_mutant_is_found_by_its_id() -> None:
    ids = sorted({mutant.caught_by for mutant in MUTANTS.values() if not mutant.act})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *ids],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr


_ONE_IN = 8
GUARDED = "def other():\n    if guard:\n        stop()\n\ndef this():\n"
MUTANT = Mutant("a guard", "no-guard", "this", "if guard:\n    stop()\n", "pass\n", "", "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package where mutants look for what they change."""
    monkeypatch.setattr(finding, "PACKAGE", tmp_path)
    finding.all_definitions.cache_clear()
    yield tmp_path
    finding.all_definitions.cache_clear()


@pytest.mark.parametrize("outer, deep", [("a()", "    "), ("with a:", " " * 8)])
def test_a_guard_is_found_by_the_name_of_its_function_wherever_it_lies(package: Path, outer: str, deep: str) -> None:
    (package / "room").mkdir()
    (package / "other.py").write_text("class A:\n    def this(self):\n        pass\n")
    before, after = f"{GUARDED}    {outer}\n", "    b()\n"
    (package / "room" / "moved.py").write_text(f"{before}{deep}if guard:\n{deep}    stop()\n{after}")

    assert MUTANT.changed() == ("room/moved.py", f"{before}{deep}pass\n{after}")


def test_a_guard_is_found_whatever_its_comments_say(package: Path) -> None:
    (package / "guarded.py").write_text(
        'def this():\n    # why\n    if guard:  # "if"\n        # how\n        stop()\n'
    )
    mutant = replace(MUTANT, old="if guard:  # the old reason\n    stop()\n")

    assert mutant.changed() == ("guarded.py", "def this():\n    pass\n")


@pytest.mark.parametrize("times", [0, 2])
def test_a_guard_that_is_another_one_now_is_noticed(package: Path, times: int) -> None:
    (package / "guarded.py").write_text(
        GUARDED + "    if guard:\n        stop()\n" * times + "    if now:\n        stop()\n"
    )

    with pytest.raises(ValueError, match=rf"mutant no-guard: its text is {times} times in this, wanted once"):
        MUTANT.changed()


def test_a_name_is_that_of_a_function_method_constant_or_module(package: Path) -> None:
    (package / "guarded.py").write_text("A = 1\n\n@b\ndef f():\n    C = 1\n\nclass D:\n    def f(self): ...\n")

    lines = {name: [(at.begin, at.end) for at in definitions(name)] for name in ("A", "f", "D.f", "guarded", "C", "no")}

    assert lines == {"A": [(0, 1)], "f": [(2, 5), (7, 8)], "D.f": [(7, 8)], "guarded": [(0, 8)], "C": [], "no": []}


def test_no_two_mutants_have_one_name_and_every_law_catches_one() -> None:
    assert len(MUTANTS) == sum(map(len, LISTS))
    catching = {mutant.says.removesuffix(" (") for mutant in MUTANTS.values()}
    # A file of the store is locked by one lock of its own; that both laws on locks hold is tried in test_laws.
    assert LAWS.keys() - catching <= {"L3"}


def test_the_page_is_what_the_runner_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make mutants"


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_mutants_of_the_protocol_break_the_law(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without ``CKSTORE_CRASH=full`` some of them, others for each commit."""
    every, seed = [mutant for mutant in MUTANTS.values() if mutant.act], sample_seed()
    mutants = every if seed is None else every[seed % _ONE_IN :: _ONE_IN]

    outcomes = judge(mutants, tmp_path)

    missed = [outcome.mutant.name for outcome in outcomes if not outcome.caught]
    tell(capfd, "by the trace law", len(outcomes), len(missed))
    assert missed == []


def tell(capfd: pytest.CaptureFixture[str], what: str, count: int, missed: int) -> None:
    line = covered("mutants", what, violations=missed, mutants=count, caught=count - missed)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
