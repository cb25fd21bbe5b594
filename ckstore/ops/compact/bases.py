"""The checkpoints that others are encoded against, open as long as they are needed.

One that is compacted itself is kept as it was: older ones are encoded against its plain bytes, which nothing else may
have any more.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from ckstore.fs.inside import Inside
from ckstore.model.reports.compaction import CompactionPlan
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.compact.plan import opened
from ckstore.ops.context import Context


class _Base(NamedTuple):
    """An open checkpoint; with a path it was exchanged, and lies in ``staging/``."""

    directory: CheckpointDirectory
    path: Inside | None


class Bases:
    """The bases of a plan; each is closed, and goes to trash if it was exchanged, after its last use."""

    def __init__(self, context: Context, plan: CompactionPlan) -> None:
        self._context = context
        self._infos = {entry.info.name: entry.info for entry in plan.entries}
        self._uses_left = dict.fromkeys(self._infos, 0)
        for entry in plan.compacted:
            self._uses_left[entry.base] += 1
        self._open: dict[str, _Base] = {}

    def open(self, name: str) -> CheckpointDirectory:
        """Return a base, opened once: as it was before it was compacted itself, if that was here."""
        if name not in self._open:
            self._open[name] = _Base(opened(self._context, self._infos[name]), None)
        return self._open[name].directory

    def published(self) -> list[CheckpointDirectory]:
        """Return the open ones that were not exchanged."""
        return [base.directory for base in self._open.values() if base.path is None]

    def close_published(self) -> None:
        """Close them; `open` looks at each again."""
        for name in [name for name, base in self._open.items() if base.path is None]:
            self._drop(name)

    def put_old(self, name: str, directory: CheckpointDirectory, path: Inside) -> None:
        """Keep the directory of a checkpoint that was exchanged, with its lock."""
        self._open[name] = _Base(directory, path)

    def used(self, name: str) -> None:
        """Take note that one checkpoint was encoded against it, or will not be."""
        self._uses_left[name] -= 1
        self.drop_unused(name)

    def drop_unused(self, name: str) -> None:
        """Let go of it, if no other is encoded against it."""
        if not self._uses_left[name]:
            self._drop(name)

    def close(self) -> None:
        """Let go of all; one that cannot be put away keeps no other open."""
        with ExitStack() as left:
            for name in self._open:
                left.callback(self._drop, name)

    def _drop(self, name: str) -> None:
        base = self._open.pop(name, None)
        if base is None:
            return
        try:
            if base.path is not None:
                trash.move_to_trash(self._context.layout, base.path, base.directory.lock)
        except FileNotFoundError:  # swept by another process
            pass
        finally:
            base.directory.close()
