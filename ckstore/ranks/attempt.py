"""Check how the caller describes the ranks of a save without a process group, and name their common attempt."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from ckstore.errors import BadInput
from ckstore.model.manifest.ranks import ATTEMPT_MOST_CHARS, WORLD_SIZE_MOST
from ckstore.model.names import check_run, check_step
from ckstore.ranks.rank_identity import RankIdentity


def attempt_here(attempt: str | None) -> str:
    """Return the name of this attempt, from the caller or from the launcher."""
    if attempt:
        return attempt
    environment = os.environ
    for job, restarts in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ):
        if environment.get(job) and environment[job] != "none":
            return f"{environment[job]}.{environment.get(restarts, '0')}"
    port = environment.get("MASTER_PORT")
    if environment.get("TORCHELASTIC_RUN_ID") and port:  # torchrun without --rdzv-id names every run "none"
        return f"{environment.get('MASTER_ADDR', '')}:{port}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    msg = "the ranks need a common name for this attempt, to distinguish it from leftovers of other attempts"
    raise BadInput(msg, hint="give attempt=, the same on all ranks and new for each start of the job")


@dataclass(frozen=True, slots=True)
class Ranks:
    """Describes this process as one of several ranks that each save a part of a checkpoint, without a process group.

    All ranks pass the same step, run, `world_size` and `attempt`. After the last part is staged, one checkpoint is
    published.

    Attributes:
        rank: The number of this process, from 0.
        world_size: The number of ranks.
        attempt: The name of this start of the job, the same on all ranks, so that a save never uses leftovers of
            another start. If None, the name is taken from torchrun or Slurm.
        timeout_s: The maximum time to wait for the other ranks, in seconds.
    """

    rank: int
    world_size: int
    attempt: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class AsRank:
    """The arguments of the caller about ranks, and the checkpoint that the ranks save."""

    ranks: Ranks
    run: str
    step: object

    def who(self) -> RankIdentity:
        """Check the arguments, and return the identity of this rank."""
        ranks: object = self.ranks
        if not isinstance(ranks, Ranks):
            raise BadInput(f"ranks must be a Ranks, got {ranks!r}", hint="give ckstore.Ranks(rank, world_size)")
        if type(ranks.world_size) is not int or not 1 <= ranks.world_size <= WORLD_SIZE_MOST:
            raise BadInput(f"world_size must be the number of ranks, at least 1, got {ranks.world_size!r}")
        if type(ranks.rank) is not int or not 0 <= ranks.rank < ranks.world_size:
            raise BadInput(f"rank must be an integer from 0 to {ranks.world_size - 1}, got {ranks.rank!r}")
        timeout_s: object = ranks.timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise BadInput(f"timeout_s must be a number of seconds above 0, got {timeout_s!r}")
        check_run(self.run)
        if self.step is None:
            msg = "ranks that save together need a step"
            raise BadInput(msg, hint="pass step=, the same on all ranks")
        attempt = attempt_here(ranks.attempt)
        if len(attempt) > ATTEMPT_MOST_CHARS:
            raise BadInput(f"attempt must have at most {ATTEMPT_MOST_CHARS} characters, got {len(attempt)}")
        step = check_step(self.step)
        return RankIdentity.here(self.run, step, ranks.rank, world_size=ranks.world_size, attempt=attempt)


def hint_for_single_save() -> str:
    """Return a hint if this process is one of several ranks but saves alone, otherwise an empty string."""
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    # The module is looked up instead of imported: a save of NumPy arrays must not load torch only for a hint.
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        rank, world_size = str(group.get_rank()), str(group.get_world_size())
    if not (rank.isdecimal() and world_size.isdecimal() and int(world_size) > 1):
        return ""
    return (
        f"this is rank {rank} of {world_size}: if all have the same state, save on rank 0 only. "
        "If each has its own, pass ranks=Ranks(rank, world_size)"
    )
