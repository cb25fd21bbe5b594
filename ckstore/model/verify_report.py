"""What was found damaged, and what a verification says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with one checkpoint.

    Attributes:
        run, step: Which checkpoint.
        names: The tensors and other values whose bytes are damaged or missing; empty when no value of the
            checkpoint is, as for bytes of a shared blob that it does not use, or when it is not known which are.
        blob: Digest of the blob; empty when the manifest or the directory itself is damaged.
        what: One sentence: what is wrong, what was wanted.
        affects: False if everything that the checkpoint holds is right all the same: the damage is in bytes of a
            shared blob that it does not use. Such a checkpoint is not marked.
    """

    run: str
    step: int
    names: tuple[str, ...]
    blob: str
    what: str
    affects: bool = True

    @property
    def checkpoint(self) -> str:
        """The full ref of the checkpoint, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `ckstore.Store.verify` found.

    Attributes:
        checkpoint_count: Checkpoints, whole or not, that were looked at.
        checked_bytes: Bytes of blobs that were read and compared with their digests; a blob that several
            checkpoints share counts once.
        damage: Everything that is wrong, by checkpoint in the order of their commits; those whose order cannot be
            told come last.
        sample: The part of the blobs that was read, from 0 to 1; 1 is all.
    """

    checkpoint_count: int
    checked_bytes: int
    damage: tuple[Damage, ...] = ()
    sample: float = 1.0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was looked at."""
        return not self.damage
