"""The law of the room: what was captured comes back the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from ckstore.tensors.state_capture import capture
from tests.support.captures import Saved, bytes_of
from tests.support.states import assert_same, every_state, plain_states, states


@pytest.mark.property
@given(state=states())
def test_a_state_comes_back_the_same(state: Any) -> None:
    assert_same(state, Saved(state).load())


@pytest.mark.property
@given(state=every_state())
def test_a_state_of_every_kind_of_value_comes_back_the_same(state: Any) -> None:
    assert_same(state, Saved(state).load())


@pytest.mark.property
@given(state=plain_states())
def test_a_state_of_plain_python_comes_back_the_same(state: Any) -> None:
    assert_same(state, Saved(state).load())


@pytest.mark.property
@given(state=states())
def test_a_state_that_came_back_is_stored_as_before(state: Any) -> None:
    first = Saved(state)

    again = Saved(first.load())

    assert again.captured.state == first.captured.state
    assert again.captured.leaves == first.captured.leaves
    assert again.data == first.data


@pytest.mark.property
@given(state=states())
def test_every_part_of_a_source_can_be_viewed_or_read_alone(state: Any) -> None:
    for source in capture(state).sources:
        whole = bytes_of(source)
        for start in range(0, source.nbytes, 7):
            stop = min(start + 20, source.nbytes)
            out = bytearray(stop - start)
            source.read_into(start, stop, memoryview(out))
            view = source.view(start, stop)

            assert out == whole[start:stop]
            assert view is None or view == out
            assert view is None or view.readonly


@pytest.mark.property
@given(state=states())
def test_names_tell_leaves_apart(state: Any) -> None:
    names = [leaf.name for leaf in capture(state).leaves]

    assert len(set(names)) == len(names)


@pytest.mark.property
@given(state=states())
def test_nothing_counts_as_changed_when_nothing_was(state: Any) -> None:
    captured = capture(state)

    assert not any(source.changed() for source in captured.sources)
