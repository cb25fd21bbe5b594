"""What the crash lanes covered: printed in the log, and kept for the table of docs/reliability.md."""

from __future__ import annotations

import json
import os
import random
import time

from tests.support.requirements import CRASH_FULL

REPORT = "CKSTORE_CRASH_REPORT"
"""Names a file to which every lane adds a line of JSON (`make crash` sets it, `tests/tools/reliability` reads it)."""
_DAY_S = 86_400


def lane_seed(*, short: int = 5) -> int:
    """Return the seed of a lane: that of CKSTORE_CRASH_SEED, else `short`, and another one in each long run."""
    if told := os.environ.get("CKSTORE_CRASH_SEED", ""):
        return int(told)
    return random.SystemRandom().randrange(2**32) if CRASH_FULL else short


def daily_seed() -> int | None:
    """Return the seed of a short run that tries other points each day: CKSTORE_CRASH_SEED, else the day; None: all."""
    return None if CRASH_FULL else int(os.environ.get("CKSTORE_CRASH_SEED") or time.time() // _DAY_S)


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
