"""The parent of each run's next checkpoint, as the savers of a client learn it, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckstore.model.manifest.info import CheckpointInfo


class Parents:
    """What a saver knows of `Context.last_parents` when it has made the saves that it was sent.

    Each order carries what is new since the order before it. A saver that takes the place of another has not heard
    those orders, so its first one also carries what was settled by the saves that have ended.
    """

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}
        self._settled: dict[str, str] = {}

    def news(self, last_parents: Mapping[str, str]) -> dict[str, str]:
        """Return what the next order is to say."""
        # Only what is new, and `tuple`: another thread may load a checkpoint while this is sent.
        return {run: parent for run, parent in tuple(last_parents.items()) if self._sent.get(run) != parent}

    def ordered(self, news: Mapping[str, str]) -> None:
        """An order says this."""
        self._sent.update(news)

    def ended(self, news: Mapping[str, str], saved: CheckpointInfo | None) -> None:
        """A save has ended, whose order said this; None: it failed."""
        # Also of a failed save: the saver had heard of these parents, whatever became of the checkpoint.
        self._settled.update(news)
        if saved is not None:
            self._settled[saved.run] = self._sent[saved.run] = saved.id

    def for_new_saver(self, news: Mapping[str, str]) -> dict[str, str]:
        """Return what the first order to a new saver is to say, of which the order itself says `news`."""
        return {**self._settled, **news}
