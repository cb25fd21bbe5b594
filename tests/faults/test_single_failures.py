"""A system call that fails once fails the save with an error of ckstore at most, and nothing else.

``CKSTORE_CRASH=full`` tries every call: with every error those that ckstore makes, with one of two errors in turn those
of SQLite, which only tells a full disk from all else; and what fails from some call on, for good, at the calls of
ckstore and one in four of SQLite, two of the four ways at every second of these. Else half of the acts, each in one
way, at a sample of its calls, another one for each commit, with the errors in turn. The counts are printed. What is
looked at afterwards is in `server.py` (the process that met the error) and `checker.py` (the store that it left).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from itertools import product

import pytest

from tests.faults.harness import Faults, Tally, Whole, every_point, sample, split
from tests.faults.scenarios import SCENARIOS
from tests.faults.shim import ALLOCATING, Family, Mode
from tests.support.coverage import drawn, sample_seed

pytestmark = pytest.mark.crash


@dataclass(frozen=True)
class Failing:
    """One way in which calls fail.

    Attributes:
        errors: Tried at every call, or in turn.
        sampled: How many calls are tried unless all are.
        sticky: Every call from that one on fails, until the act has ended.
        one_in: Of the calls from which on all fail one in so many is tried.
    """

    families: Family
    errors: tuple[int, ...]
    sampled: int
    mode: Mode = "error"
    sticky: bool = False
    one_in: int = 1


_TOLD_APART_BY_SQLITE = 2
_ONE_CATALOG_CALL_IN = 4
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EROFS, errno.ESTALE)

WAYS = {
    "changing": Failing(Family.MUTATING, _ERRORS, 2),
    "opening": Failing(Family.OPEN | Family.CREATE, (errno.EMFILE,), 2),
    "short": Failing(Family.WRITE, (0,), 2, mode="short"),
    "closing": Failing(Family.CLOSE, (errno.EIO,), 2),
    "locking": Failing(Family.LOCK, (errno.ENOLCK,), 2),
    "reading": Failing(Family.READ, (errno.EIO,), 2),
    "disk full": Failing(ALLOCATING, (errno.ENOSPC,), 2, sticky=True),
    "disk gone": Failing(Family.MUTATING, (errno.EIO,), 2, sticky=True),
    "disk read-only": Failing(Family.MUTATING, (errno.EROFS,), 2, sticky=True, one_in=2),
    "server gone": Failing(Family.MUTATING | Family.READ | Family.OPEN, (errno.ESTALE,), 2, sticky=True, one_in=2),
}


NOTHING_TO_HIT = {("checkout", "reading")}
"""A checkout reads in the store, and is hit where it writes."""


@pytest.mark.crossed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", drawn(SCENARIOS, 2))
def test_a_call_that_fails_does_no_harm(faults: Faults, whole: Whole, scenario: str, way: str) -> None:
    how = WAYS[way]
    calls = faults.calls(scenario, how.families)
    tally = Tally(f"{scenario} ({len(calls)} calls), {way}")

    def run(error: int, at: int) -> dict[str, object]:
        return faults.case(scenario, how.mode, at, error=error, sticky=how.sticky, families=how.families)

    seed = sample_seed()
    if seed is None and how.sticky:
        own, of_catalog = split(calls)
        for at in sorted([*own, *of_catalog[::_ONE_CATALOG_CALL_IN]])[:: how.one_in]:
            tally.add(at, run(how.errors[0], at))
    elif seed is None:
        in_turn = how.errors[:_TOLD_APART_BY_SQLITE]
        every_point(tally, lambda at: run(in_turn[at % len(in_turn)], at))
        for at, error in product(split(calls)[0], how.errors):
            if error != in_turn[at % len(in_turn)]:
                tally.add(at, run(error, at))
    else:
        for at in sample(calls, how.sampled, seed + [*WAYS].index(way)):
            tally.add(at, run(how.errors[(at + seed) % len(how.errors)], at))

    whole(tally, seed)
    assert tally.refused + tally.survived == tally.points
    assert tally.points > 0 or (scenario, way) in NOTHING_TO_HIT
