"""What the crash lanes covered: printed in the log, and kept for the table of docs/reliability.md."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.requirements import CRASH_FULL, representatives

REPORT = "CKSTORE_CRASH_REPORT"
"""Names a file to which every lane adds a line of JSON (`make crash` sets it, `tests/tools/reliability` reads it)."""
_ROOT = Path(__file__).resolve().parents[2]


@cache
def commit() -> str:
    """Return the hash of the commit that is checked out; empty where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def sample_seed() -> int | None:
    """Return the seed of a short run: CKSTORE_CRASH_SEED, else one of the commit; None: try every point.

    Of the commit, so that each tries other points, and one that passed does not fail the next day.
    """
    return None if CRASH_FULL else int(os.environ.get("CKSTORE_CRASH_SEED") or int(commit()[:8] or "0", 16))


def lane_seed() -> int:
    """Return the seed of a lane that draws in its long form, too: then another one each time, else as `sample_seed`."""
    seed = sample_seed()
    return int(os.environ.get("CKSTORE_CRASH_SEED") or random.SystemRandom().randrange(2**32)) if seed is None else seed


def drawn(cases: Iterable[Any], one_in: int, *kept: Any) -> list[Any]:
    """Return `cases` for `parametrize`: those that the commit draws, one in so many, and `kept`; `make crash` runs all.

    Args:
        cases: All of them.
        one_in: So that as many commits try each.
        kept: Always run, such as what catches a mutant.
    """
    every, seed = [*cases], sample_seed() or 0
    return representatives(every, *every[seed % one_in :: one_in], *kept)


def covered(lane: str, what: str, *, violations: int = 0, seed: int | None = None, **counts: int) -> str:
    """Keep and return what a test of a crash lane covered.

    Args:
        lane: As it is called in docs/reliability.md, such as ``kill points``.
        what: The part of it, such as the name of a scenario.
        violations: How often a promise was broken: a checkpoint lost, half visible, or wrong.
        seed: From which the cases were drawn, if they were.
        counts: How many of what, such as ``points=204, killed=204``.

    Returns:
        One line for people; print it.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[0]
    line = {"lane": lane, "what": what, "counts": counts, "violations": violations, "seed": seed, "test": test}
    path = os.environ.get(REPORT)
    if path:
        data = (json.dumps(line) + "\n").encode()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.write(fd, data) != len(data):  # one write: several workers add to it
                raise OSError(f"{path} took a part of a line only")
        finally:
            os.close(fd)
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    drawn = "" if seed is None else f", seed {seed}"
    return f"{lane}, {what}: {told}, {violations} violations{drawn}"
