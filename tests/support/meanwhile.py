"""Do something else in the middle of some work: before or after one of its steps, the calls of chosen functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


def elsewhere(work: Callable[[], Result]) -> Result:
    """Do `work` in a thread of its own, as others do it, and return what it returns: a thread has one act at a time."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(work).result()


def run_with(
    work: Callable[[], Result],
    meanwhile: Callable[[], object],
    at: int,
    *,
    before: bool,
    steps: Sequence[tuple[object, str]],
) -> tuple[Result, bool]:
    """Run `work` and, before or after its `at`-th step, `meanwhile`. Steps of other threads do not count.

    Args:
        work: What is looked at.
        meanwhile: What another process does.
        at: Which step, from 1.
        before: Before it, else after it.
        steps: Which functions are steps: where each is looked up, and its name.

    Returns:
        What `work` returned, and whether it had so many steps.
    """
    count, thread = 0, threading.get_ident()

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            count += 1
            mine = count == at
            if mine and before:
                elsewhere(meanwhile)
            result = original(*args, **kwargs)
            if mine and not before:
                elsewhere(meanwhile)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        result = work()
    return result, count >= at
