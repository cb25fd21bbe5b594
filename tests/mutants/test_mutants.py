"""Each guard of the protocol is needed: the code without it is caught.

Those that break the trace law are run here, those that fail another test by ``make mutants``: each runs that test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.laws import LAWS
from tests.mutants.deciding import DECIDING
from tests.mutants.durability import DURABILITY
from tests.mutants.index import INDEX
from tests.mutants.places import PLACES
from tests.mutants.runner import MUTANTS, PAGE, ROOT, judge, page
from tests.mutants.sharing import SHARING
from tests.support.coverage import covered


@pytest.mark.parametrize("name", MUTANTS)
def test_the_guard_that_a_mutant_takes_away_is_still_there(name: str) -> None:
    mutant = MUTANTS[name]
    sources = (ROOT / "ckstore" / mutant.file).read_text(encoding="utf-8")
    test, _, function = mutant.caught_by.partition("::")

    compile(mutant.without_guard(sources), mutant.file, "exec")
    assert not function or f"def {function.partition('[')[0]}(" in (ROOT / test).read_text(encoding="utf-8")


def test_a_guard_that_has_moved_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"mutant no-lease: its text is 0 times in ckstore/objects/last_names\.py"):
        MUTANTS["no-lease"].without_guard("")


def test_no_two_mutants_have_one_name_and_every_law_catches_one() -> None:
    assert len(MUTANTS) == len(DURABILITY) + len(SHARING) + len(PLACES) + len(DECIDING) + len(INDEX)
    catching = {mutant.says.removesuffix(" (") for mutant in MUTANTS.values()}
    # A file of the store is locked by one lock of its own; that both laws on locks hold is tried in test_laws.
    assert LAWS.keys() - catching <= {"L3"}


def test_the_page_is_what_the_runner_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make mutants"


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_mutants_of_the_protocol_break_the_law(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mutants = [mutant for mutant in MUTANTS.values() if mutant.act]

    outcomes = judge(mutants, tmp_path)

    missed = [outcome.mutant.name for outcome in outcomes if not outcome.caught]
    tell(capfd, "by the trace law", len(outcomes), len(missed))
    assert missed == []


def tell(capfd: pytest.CaptureFixture[str], what: str, count: int, missed: int) -> None:
    line = covered("mutants", what, violations=missed, mutants=count, caught=count - missed)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
