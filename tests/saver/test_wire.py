"""The socket between trainer and saver: nothing that was said is lost, whatever became of the one that said it."""

from __future__ import annotations

import pytest

from ckstore.model.saver.messages import Answer, Close, Started, Status
from ckstore.saver import wire
from ckstore.saver.server.status_page import Inbox


def test_what_was_said_before_the_end_is_heard_though_an_order_was_left_unread() -> None:
    mine, theirs = wire.pair()
    with mine:
        with theirs:
            wire.send(mine, Started())  # never read: the kernel reports that as an error
            wire.send(theirs, Status(1, "hashing", 5, 9))
            wire.send(theirs, Status(1, "syncing", 9, 9))

        heard = [wire.receive(mine, 0) for _ in range(3)]

    assert heard == [(Status(1, "hashing", 5, 9), []), (Status(1, "syncing", 9, 9), []), (None, [])]


@pytest.mark.parametrize("is_early", [False, True])
def test_a_save_that_was_given_up_is_refused_though_the_trainer_has_ended(is_early: bool) -> None:
    mine, theirs = wire.pair()
    with mine, Inbox(mine) as inbox:
        with theirs:
            wire.send(theirs, Answer(1, allowed=False))
            wire.send(theirs, Close())
        if is_early:  # it was given up before the saver came to its order
            assert inbox.next() == (Close(), [])

        assert [inbox.allows(number) for number in (1, 2, 1)] == [False, True, False]
