"""The conditions under which a run was saved, apart from its state, and how they differ from the current conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.brief import brief
from ckstore.model.words import some_of
from ckstore.training.processes import rank_and_world


@brief()
@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which a run was saved, apart from its state."""

    world_size: int = 1  # number of processes that trained
    rng_ranks: tuple[int, ...] = ()  # ranks whose random states were captured
    rng_kinds: tuple[str, ...] = ()  # captured generators: ``python``, ``numpy``, ``torch``, ``cuda``
    # Class, batch size and lengths of the data loader, or empty without a data loader.
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    dataloader_resumes: bool = True  # whether the data loader continues at its position
    settings: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters that were passed to a framework
    # Settings of the program that a resume does not change, such as the precision.
    options: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()  # aspects that could not be captured, one sentence each, with the remedy
    batches_read: int = 0  # batches of the epoch that each process has read, 0 between two epochs or if unknown
    samples_per_batch: int = 0  # samples in a batch of all processes together, or 0 if unknown

    def with_rng_of(self, ranks: Iterable[int]) -> Conditions:
        """Return a copy that lists these ranks as those whose random states were captured."""
        return replace(self, rng_ranks=tuple(sorted(ranks)))

    @property
    def has_own_rng(self) -> bool:
        """Whether the random states of this rank were captured."""
        return rank_and_world()[0] in self.rng_ranks

    def to_json(self) -> dict[str, Any]:
        """Return this as metadata of a checkpoint."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, value: object) -> Conditions:
        """Return the conditions that `to_json` encoded."""
        try:
            members: Any = value
            return cls(
                int(members["world_size"]),
                tuple(int(rank) for rank in members["rng_ranks"]),
                tuple(str(kind) for kind in members["rng_kinds"]),
                dict(members["dataloader"]),
                bool(members["dataloader_resumes"]),
                # Older checkpoints lack these members.
                dict(members.get("settings", {})),
                dict(members.get("options", {})),
                tuple(str(sentence) for sentence in members.get("lost", ())),
                int(members.get("batches_read", 0)),
                int(members.get("samples_per_batch", 0)),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            msg = f"this is not a record of the conditions of a training run: {error}"
            raise BadInput(msg, hint="ckstore.training.capture writes one") from error


def differences(
    before: Conditions, now: Conditions, ranks: Sequence[int] | None = None, *, rng: bool = True
) -> Iterator[str]:
    """Yield one sentence for each difference that prevents an exact resume on `ranks`, or on this rank by default.

    Without `rng`, random states are not compared.
    """
    ranks = rank_and_world()[:1] if ranks is None else ranks
    lacking = tuple(rank for rank in ranks if rank not in before.rng_ranks)
    if before.world_size != now.world_size:
        now_text = "there is 1" if now.world_size == 1 else f"there are {now.world_size}"
        saved_by = "1 process" if before.world_size == 1 else f"{before.world_size} processes"
        yield f"the checkpoint was saved by {saved_by}, and now {now_text}"
    if not rng:
        yield "random states were not restored, since rng=False"
    elif not before.rng_ranks:
        yield "the checkpoint holds no random states: numbers drawn from here on will differ"
    elif lacking:
        whose = "random state of rank" if len(lacking) == 1 else "random states of ranks"
        yield f"the checkpoint holds no {whose} {_listed(lacking)}, only of {_listed(before.rng_ranks)}"
    else:
        for kind in now.rng_kinds:
            if kind not in before.rng_kinds:
                yield f"the checkpoint holds no random state of {kind}, which this process uses"
    yield from _other_settings(before, now)
    if before.dataloader and not before.dataloader_resumes:
        yield "the data loader does not save its position in the data, so it begins an epoch"
    yield from before.lost


def _other_settings(before: Conditions, now: Conditions) -> Iterator[str]:
    if before.dataloader and now.dataloader:
        for name in sorted({*before.dataloader, *now.dataloader}):
            old, new = before.dataloader.get(name), now.dataloader.get(name)
            # Do not report a missing seed. Older checkpoints have no seed. Apart from these, if only one sampler has a
            # seed, the classes of the samplers differ, and this is already reported.
            if old != new and not (name == "sampler_seed" and None in (old, new)):
                yield f"the data loader has another {name.replace('_', ' ')}: {new!r} now, {old!r} in the checkpoint"
    for name in sorted(before.settings.keys() & now.settings.keys()):
        old, new = before.settings[name], now.settings[name]
        if old != new:
            yield f"{name} is {new!r} now, {old!r} in the checkpoint, which has its own optimizer and schedule"
    for name in sorted(before.options.keys() & now.options.keys()):
        old, new = before.options[name], now.options[name]
        if old != new:
            yield f"{name} is {new!r} now, {old!r} in the checkpoint"


def _listed(ranks: tuple[int, ...]) -> str:
    return some_of([*map(str, ranks)])
