"""The machine whose power is cut, the seed of what is drawn, and a way to print counts that is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.crash.harness import Machine, Tally
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import require_fuse, require_program, require_root


@pytest.fixture(scope="session")
def seed() -> int:
    """As `lane_seed`."""
    return lane_seed()


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One for each session, or for each worker of it. Needs root and loop devices."""
    require_root()
    for program in ("mkfs.ext4", "mkfs.xfs", "losetup"):
        require_program(program)
    with Machine(tmp_path_factory.mktemp("crash")) as made:
        yield made


@pytest.fixture
def recording_machine(machine: Machine) -> Machine:
    """The same, where a disk in userspace works."""
    require_fuse()
    return machine


@pytest.fixture
def whole(capfd: pytest.CaptureFixture[str], seed: int) -> Callable[[Tally], None]:
    """Print the counts of a tally, also when the test passes, and fail if anything was violated."""

    def check(tally: Tally) -> None:
        line = covered(tally.lane, tally.what, violations=len(tally.violations), seed=seed, **tally.counts)
        with capfd.disabled():
            print("\n".join(["", line, *tally.violations[:2]]), file=sys.stderr, flush=True)
        if tally.violations:
            pytest.fail("\n\n".join([line, *tally.violations[:5]]), pytrace=False)

    return check
