"""How far the mirror of a store is."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.words import counted, printable


@brief()
@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far a mirror is behind its store.

    Attributes:
        remote: Name of the remote.
        behind: The checkpoints that are only here, the newest first.
        oldest_s: For how many seconds the oldest of them has been there; 0 if there is none.
        age_s: For how many seconds one may be, as the setting `mirror_age_s` says.
        problem: Why the last try to push failed; empty if it did not.
        failing_since: When the first try failed since one worked, as `CheckpointInfo.created`; empty if `problem` is.
    """

    remote: str
    behind: tuple[CheckpointInfo, ...]
    oldest_s: float
    age_s: float
    problem: str
    failing_since: str = ""

    @property
    def ok(self) -> bool:
        """Whether the last push did not fail, and nothing has been only here for longer than the setting allows."""
        return not self.problem and not self.missed

    @property
    def missed(self) -> bool:
        """Whether something has been only here for longer than the setting allows."""
        return self.oldest_s > self.age_s

    def __str__(self) -> str:
        why = f"; the last push failed: {self.problem}" if self.problem else ""
        if self.failing_since:
            why += f"; none has worked since {self.failing_since[:19].replace('T', ' ')} UTC"
        if not self.behind:
            return printable(f"{mirror_named(self.remote)} has every checkpoint{why}")
        verb = "is" if len(self.behind) == 1 else "are"
        oldest = f"the oldest for {self.oldest_s:.0f} s of {self.age_s:.0f} s allowed"
        count = counted(len(self.behind), "checkpoint")
        return printable(f"{count} {verb} not at {mirror_named(self.remote)} yet, {oldest}{why}")


def mirror_named(remote: str) -> str:
    """Return what a message calls a mirror: it has a name of its own only if the user gave it one."""
    return "the mirror" if remote == "mirror" else f"the mirror {remote}"
