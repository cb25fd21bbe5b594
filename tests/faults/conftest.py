"""The fork server of a session, and a way to print counts that is seen."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Faults, Tally, Whole
from tests.support.coverage import covered
from tests.support.memory import memory_folder


@pytest.fixture(scope="session")
def faults() -> Iterator[Faults]:
    """The fork server; one for each session, or for each worker of it.

    It works in memory: what is tested is the order of calls and what follows their errors, thirty thousand times.
    """
    folder = Path(tempfile.mkdtemp(prefix="ckstore-faults-", dir=memory_folder()))
    try:
        with Faults(folder) as server:
            yield server
    finally:
        if not any(folder.glob("case-*")):  # what broke a promise is kept, to be looked at
            shutil.rmtree(folder)


@pytest.fixture
def whole(capfd: pytest.CaptureFixture[str]) -> Whole:
    """Print the counts of a tally, also when the test passes, and fail if anything was violated."""

    def check(tally: Tally, seed: int | None) -> None:
        counts = {"points": tally.points, "killed": tally.killed, "refused": tally.refused, "survived": tally.survived}
        counts["alike"] = tally.alike
        lane = "kill points" if tally.killed else "single failures"
        covered(lane, tally.what, violations=len(tally.violations), seed=seed, **counts)
        with capfd.disabled():
            print(f"\n{tally}" + ("" if seed is None else f", seed {seed}"), file=sys.stderr, flush=True)
        if tally.violations:
            pytest.fail("\n\n".join([str(tally), *tally.violations[:5]]), pytrace=False)

    return check
