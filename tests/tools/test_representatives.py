"""Of a matrix `make test` runs representatives, `make crash` all; one that is named runs everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import crossed, representatives

ROOT = Path(__file__).resolve().parents[2]
MATRIX = "tests/faults/test_signal_points.py"
ONE = "test_a_signal_at_any_call_hangs_and_leaves_nothing[replace-exit]"


def kept(parameters: list[object]) -> list[object]:
    return [one.values for one in parameters if not one.marks]  # type: ignore[attr-defined]


def test_each_value_of_each_axis_has_a_representative_and_every_combination_is_there() -> None:
    every = crossed("abcd", [1, 2], ["x"])

    assert [one.values for one in every] == [(letter, number, "x") for letter in "abcd" for number in (1, 2)]
    assert kept([*every]) == [("a", 1, "x"), ("b", 2, "x"), ("c", 1, "x"), ("d", 2, "x")]


def test_representatives_are_those_that_are_named() -> None:
    every = representatives(["a", ("b", 2), "c"], "c", ("b", 2))

    assert [one.values for one in every] == [("a",), ("b", 2), ("c",)]
    assert kept(every) == [("b", 2), ("c",)]
    with pytest.raises(AssertionError, match="are not all among"):
        representatives(["a"], "b")


@pytest.mark.parametrize(
    "arguments, full, there",
    [([MATRIX], "", False), ([MATRIX], "full", True), ([f"{MATRIX}::{ONE}"], "", True)],
    ids=["make test", "make crash", "named"],
)
def test_the_others_run_in_make_crash_and_by_their_names(arguments: list[str], full: str, there: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "CKSTORE_CRASH": full},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (f"{MATRIX}::{ONE}\n" in done.stdout) == there, done.stdout + done.stderr
    assert f"{MATRIX}::" in done.stdout
