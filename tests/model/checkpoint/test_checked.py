"""``verified.json`` comes back as it was, and whatever else is there counts as nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput, DamagedBlob
from ckstore.model.canonical import canonical_json
from ckstore.model.seal import check_seal, seal
from ckstore.objects.documents.verify_times import CheckedTimes, parse_checked

DIGESTS = st.binary(min_size=16, max_size=16).map(lambda data: f"xxh3-{data.hex()}")
COPIES = st.tuples(DIGESTS, st.integers(0, 2**64 - 1))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.property
@given(times=st.dictionaries(COPIES, st.integers(1, 2**40), max_size=5))
def test_what_was_checked_when_comes_back(times: dict[tuple[str, int], int]) -> None:
    assert parse_checked(CheckedTimes(times).render(), "x").times == times


@pytest.mark.property
@given(data=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_bytes_are_nothing(data: bytes) -> None:
    assert parse_checked(data, "x").times == {}


@given(entry=JSON)
def test_an_entry_of_another_form_is_left_out(entry: object) -> None:
    good = ["xxh3-" + 32 * "a", "7", 5]
    data = canonical_json({"format": "ckstore-verified", "version": 1, "blobs": [entry, good]})

    assert parse_checked(data, "x").times == {("xxh3-" + 32 * "a", 7): 5}


def test_a_time_in_the_future_is_that_of_a_wrong_clock() -> None:
    copy = ("xxh3-" + 32 * "a", 7)
    checked = CheckedTimes({copy: 1000})

    assert [checked.when(copy, now_s) for now_s in (999, 1000, 2000)] == [0, 1000, 1000]
    assert checked.when((copy[0], 8), 2000) == 0, "another inode is another copy"


@pytest.mark.property
@given(members=st.dictionaries(st.text(), JSON, max_size=4), data=st.data())
def test_a_sealed_file_is_right_and_any_other_byte_is_found(members: dict[str, object], data: st.DataObject) -> None:
    members.pop("digest", None)
    sealed = seal(canonical_json(members))

    assert check_seal(sealed, "x")
    assert not check_seal(canonical_json(members), "x")
    assert seal(sealed) == sealed
    at = data.draw(st.integers(0, len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[at] ^= data.draw(st.integers(1, 255))
    try:
        carries = check_seal(bytes(flipped), "x")
    except (DamagedBlob, BadInput):
        return
    # Only white space, or the member's own name, can be changed so that the rest stays right; the latter is told.
    assert not carries or json.loads(flipped) == json.loads(sealed)
