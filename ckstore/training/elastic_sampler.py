"""A sampler that continues an epoch on a different number of ranks and returns each sample once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ckstore.errors import BadInput
from ckstore.training.processes import rank_and_world

_REMAINDERS = ("repeat", "drop", "share")


class ElasticSampler:
    """A sampler for several ranks that counts its position in the data over all ranks.

    `StatefulDataLoader` of torchdata stores the position. A resume on more or fewer ranks continues after the samples
    that all ranks together have read. All ranks read the same number of samples, unless `remainder` is ``share``. The
    order is that of `DistributedSampler`. A program that never calls `set_epoch` must also pass the loader to `capture`
    and `restore`. Otherwise, the first epoch after a save between two epochs is empty.

    Args:
        dataset: A data set with a length, or the length.
        shuffle: Whether each epoch has a different order. The program calls `set_epoch` before each epoch.
        seed: The seed of the order. It must be the same on all ranks. A loaded state has its own seed, which replaces
            this one, because the loaded position counts samples in the order of that seed.
        remainder: How to distribute the last samples if there are fewer of them than ranks. ``repeat`` reads some other
            samples of the epoch a second time, so that all ranks read the same number. ``drop`` omits the last samples.
            With ``share``, some ranks read one more sample, and each sample is read once. `DistributedDataParallel`
            then needs its context `join`. Otherwise, it hangs at the last batch.
        world_size: The number of ranks. If None, that of `torch.distributed`.
        rank: The rank of this process. If None, that of `torch.distributed`.

    Raises:
        BadInput: `remainder` is not one of these words, or `rank` and `world_size` do not match.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = True,
        seed: int = 0,
        remainder: Literal["repeat", "drop", "share"] = "repeat",
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        if remainder not in _REMAINDERS:
            raise BadInput(f"remainder must be one of {', '.join(_REMAINDERS)}, got {remainder!r}")
        if (world_size is None) != (rank is None):
            raise BadInput(f"world_size and rank go together, got {world_size} and {rank}", hint="give both or neither")
        if world_size is not None and rank is not None and not 0 <= rank < world_size:
            raise BadInput(f"rank must be below world_size, got {rank} of {world_size}")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.remainder = remainder
        self.epoch = 0
        self._of_group = None if world_size is None else (rank or 0, world_size)
        self._done_count = 0  # samples of the epoch that all ranks together have read
        self._begin_at: int | None = None  # start of the next iterator, or None for the first sample
        self._is_over = False  # whether all samples of the epoch were read, and the next iterator begins another one

    def __len__(self) -> int:
        """Return the number of samples that this rank reads in a whole epoch."""
        return len(range(*self._share(0)))

    def __iter__(self) -> Iterator[int]:
        self._done_count = 0 if self._is_over else self._begin_at or 0
        self._begin_at, self._is_over = None, False
        return self._samples(self._done_count)

    def _samples(self, begin: int) -> Iterator[int]:
        order, (_, world_size) = self._order(), self._rank_and_world()
        for at in range(*self._share(begin)):
            self._done_count = min(self._done_count + world_size, len(order))
            # `repeat` continues with the first samples of the order.
            yield order[at % len(order)]
        self._is_over = True

    def _share(self, begin: int) -> tuple[int, int, int]:
        """Return the positions in the order that this rank reads, as arguments of `range`."""
        rank, world_size = self._rank_and_world()
        count = self._count()
        whole = (count - begin) // world_size * world_size
        ends = {"share": count, "drop": begin + whole, "repeat": begin - (begin - count) // world_size * world_size}
        return begin + rank, ends[self.remainder], world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins or continues. A position in another epoch is discarded."""
        if epoch != self.epoch:
            self.epoch, self._begin_at = epoch, None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the last iterator has returned all samples, so that the next one begins an epoch."""
        return self._is_over

    def end_epoch(self) -> None:
        """Begin an epoch with the next iterator, unless `set_epoch` is called before and names the epoch to continue.

        `restore` calls this for a loader that was captured between two epochs. The loader may have no rest of an epoch
        to return, and a position after the last sample would make its next epoch empty.
        """
        self._is_over = True

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, the number of its samples that all ranks together have read, and the seed of the order."""
        done_count = self._done_count if self._begin_at is None else self._begin_at
        return {"epoch": self.epoch, "done": done_count, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the position at which the next iterator begins, and the seed of the order."""
        self.epoch, self._begin_at, self._is_over = state["epoch"], state["done"], False
        self.seed = state.get("seed", self.seed)  # older states lack the seed

    def _order(self) -> Any:
        count = self._count()
        if not self.shuffle:
            return range(count)
        import torch

        from ckstore.training.accelerator_generators import in_host_memory

        generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
        # The default device of the program may be another one, which draws other random numbers.
        with in_host_memory():
            return torch.randperm(count, generator=generator).tolist()

    def _count(self) -> int:
        return self.dataset if isinstance(self.dataset, int) else len(self.dataset)

    def _rank_and_world(self) -> tuple[int, int]:
        return rank_and_world() if self._of_group is None else self._of_group
