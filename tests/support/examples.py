"""How many examples a law about whole stores draws: each of them makes, fills and reads a store."""

from __future__ import annotations

import os

from tests.support.requirements import CRASH_FULL

_LONG = CRASH_FULL or os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def examples(short: int) -> int:
    """Return `short`, and twenty times as many where ``CKSTORE_CRASH=full`` or the nightly profile asks for them."""
    return short * 20 if _LONG else short
