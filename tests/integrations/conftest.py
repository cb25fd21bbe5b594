"""What a framework changes in its process must not reach the tests that come after it in the same one."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    """Trainers answer SIGTERM, and one that ended by an exception still does: then no pool of processes ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
