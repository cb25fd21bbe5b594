"""How many examples a law about whole stores draws: each of them makes, fills and reads a store."""

from __future__ import annotations

import os

from tests.support.requirements import CRASH_FULL

_PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
_TIMES = 40 if CRASH_FULL or _PROFILE == "nightly" else 2 if _PROFILE == "mutants" else 1


def examples(short: int) -> int:
    """Return `short`, and forty times as many where ``CKSTORE_CRASH=full`` or the nightly profile asks for them."""
    return short * _TIMES
