"""What the same act leaves twice is told to be the same: else each lane looks at thousands of stores for nothing."""

from __future__ import annotations

import pytest

from tests.faults.harness import Faults
from tests.support.coverage import drawn


@pytest.mark.parametrize("scenario", drawn(["first_save", "replace", "gc_held"], 3))
def test_an_act_leaves_the_same_twice(faults: Faults, scenario: str) -> None:
    faults.case(scenario, "count", 0)

    assert faults.case(scenario, "count", 0)["alike"]
