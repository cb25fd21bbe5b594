"""The socket between trainer and saver: nothing that was said is lost, whatever became of the one that said it."""

from __future__ import annotations

from ckstore.model.saver.messages import Started, Status
from ckstore.saver import wire


def test_what_was_said_before_the_end_is_heard_though_an_order_was_left_unread() -> None:
    mine, theirs = wire.pair()
    with mine:
        with theirs:
            wire.send(mine, Started())  # never read: the kernel reports that as an error
            wire.send(theirs, Status(1, "hashing", 5, 9))
            wire.send(theirs, Status(1, "syncing", 9, 9))

        heard = [wire.receive(mine, 0) for _ in range(3)]

    assert heard == [(Status(1, "hashing", 5, 9), []), (Status(1, "syncing", 9, 9), []), (None, [])]
