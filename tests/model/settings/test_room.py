"""What a save lacks, what would free it, and how that is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.model.settings.free_space import Amount, Need, Way, advice, shortest

amounts = st.builds(Amount, st.integers(0, 10), st.integers(0, 10))


@pytest.mark.property
@given(new=amounts, free_bytes=st.integers(0, 10), free_inodes=st.none() | st.integers(0, 10))
def test_what_is_missing_is_exactly_what_has_to_be_freed(new: Amount, free_bytes: int, free_inodes: int | None) -> None:
    need = Need(new, free_bytes, free_inodes)
    freed = need.missing

    after = Need(new, free_bytes + freed.nbytes, None if free_inodes is None else free_inodes + freed.inodes)

    assert after.fits
    assert need.fits == (freed == Amount())
    assert (" B, " in str(need), "inodes" in str(need)) == (freed.nbytes > 0, freed.inodes > 0)


@pytest.mark.property
@given(freed=st.lists(amounts, max_size=6), missing=amounts)
def test_the_shortest_start_is_enough_and_one_less_is_not(freed: list[Amount], missing: Amount) -> None:
    count = shortest(freed, missing)

    if count is None:
        assert not sum(freed, Amount()).covers(missing)
    else:
        assert sum(freed[:count], Amount()).covers(missing)
        assert count == 0 or not sum(freed[: count - 1], Amount()).covers(missing)


def test_the_advice_ends_with_the_first_way_that_is_enough() -> None:
    ways = [Way("gc", Amount(3 * 2**20, 3)), Way("ten", Amount(3 * 2**20, 3)), Way("three", Amount(40 * 2**20, 50))]

    assert advice(ways, Amount(2**20, 0)) == "gc would free 3.0 MiB"
    assert advice(ways, Amount(9 * 2**20, 0)) == "gc would free 3.0 MiB, three would free 40.0 MiB"
    assert advice(ways, Amount(0, 4)) == "gc would free 3 inodes, three would free 50 inodes"
    assert advice(ways, Amount(2**30, 0)).endswith("40.0 MiB. That is not enough, so also free space on the filesystem")
    assert advice(ways, None) == "gc would free 3.0 MiB, three would free 40.0 MiB"
    assert advice(ways[:1], Amount(1, 1)) == "gc would free 3.0 MiB and 3 inodes"


def test_the_advice_says_when_nothing_can_be_freed() -> None:
    assert "nothing in the store can be dropped" in advice([Way("gc", Amount()), Way("ten", Amount())], Amount(1, 0))
