"""What a background save has to say is logged by whichever thread comes first, and fails none of them."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from ckstore.saver.client.queue import SaveQueue


class Emptied(deque[tuple[int, str]]):
    """Another thread takes the last item after this one has looked."""

    def __bool__(self) -> bool:
        return True


def test_two_threads_that_log_at_once_do_not_fail_each_other(caplog: pytest.LogCaptureFixture) -> None:
    queue = SaveQueue(lambda _: None)
    queue._said = Emptied([(logging.WARNING, "one")])

    queue.log_said()

    assert [record.getMessage() for record in caplog.records] == ["one"]
