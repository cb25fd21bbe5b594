"""Values that several ranks have under one name. They must be equal, because a checkpoint stores only one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ckstore.errors import BadInput, CannotStore, RankMismatch
from ckstore.model.digest import ALGORITHMS
from ckstore.model.words import some_of
from ckstore.tensors.state_capture import capture

_COMPARED_MOST_BYTES = 2**20
"""The maximum size of a compared tensor, in bytes. Hashing larger ones on every rank would take as long as a save."""
_PLAIN = {int, float, str, bool, type(None)}
RULES = ("error", "warn")
_CURE = "give each rank a name of its own, such as state[f'rng.{rank}'], or make the values the same on all ranks"


def check_rule(if_ranks_differ: str) -> str:
    """Return the rule for values that differ between ranks.

    Raises:
        BadInput: The rule does not exist.
    """
    if if_ranks_differ not in RULES:
        raise BadInput(f"if_ranks_differ must be one of {', '.join(RULES)}, got {if_ranks_differ!r}")
    return if_ranks_differ


def digests_of(state: dict[str, Any], keys: Sequence[Any]) -> dict[str, str]:
    """Return a digest, by name, of each compared value: small plain tensors, and all values that are not tensors.

    `keys` are the keys of the state, as `own_keys` returns them. Empty dicts are compared with values of the same name.
    """
    empty = {".".join(map(str, path)): "an empty dict" for path, own in keys if not own}
    return {**empty, **dict(_digests(flatten_state_dict(state)[0]))}


def _digests(flat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in flat.items():
        if type(value) in _PLAIN:
            yield name, repr(value)
        elif not isinstance(value, torch.Tensor):
            try:
                yield name, _digest_of_value(value)
            except CannotStore:  # the save refuses it together with all other such values
                continue
        elif (
            type(value) in {torch.Tensor, torch.nn.Parameter}
            and value.numel() * value.element_size() <= _COMPARED_MOST_BYTES
            and value.layout is torch.strided
            and not value.is_meta
        ):
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            data: Any = plain.reshape(-1).view(torch.uint8).numpy()
            yield name, f"{value.dtype} {list(value.shape)} {_hash(memoryview(data))}"


def _digest_of_value(value: object) -> str:
    captured = capture({"value": value})
    parts = [json.dumps(captured.state), *(repr((leaf.dtype, leaf.shape, leaf.storage)) for leaf in captured.leaves)]
    for source in captured.sources:
        data = bytearray(source.nbytes)
        source.read_into(0, source.nbytes, memoryview(data))
        parts.append(_hash(data))
    return _hash("\n".join(parts).encode("utf-8", "surrogatepass"))


def _hash(data: bytes | bytearray | memoryview) -> str:
    return ALGORITHMS["xxh3_128"].digest(data)


def differing(digests: Sequence[Mapping[str, str]]) -> str:
    """Return a sentence that lists the values that differ between ranks, or an empty string."""
    first: dict[str, tuple[int, str]] = {}
    found: dict[str, tuple[int, int]] = {}
    for rank, mine in enumerate(digests):
        for name, digest in mine.items():
            other, its = first.setdefault(name, (rank, digest))
            if its != digest:
                found.setdefault(name, (other, rank))
    if not found:
        return ""
    said = some_of([f"{name} (rank {one} and rank {other})" for name, (one, other) in found.items()])
    return f"ranks have different values under one name, and a checkpoint stores only one of them: {said}"


def refuse_differing(digests: Sequence[Mapping[str, str]]) -> None:
    """Raise `RankMismatch` if a value differs between ranks."""
    if values := differing(digests):
        hint = f"{_CURE}; if_ranks_differ='warn' keeps those of one rank"
        raise RankMismatch(f"{values}; nothing was published", hint=hint)


def refuse_different_checkpoints(read: Sequence[tuple[str, str] | None]) -> None:
    """Raise `RankMismatch` if the ranks read different checkpoints.

    `read` has, for each rank, the name and the id of its checkpoint, or None if they are unknown.
    """
    found = {one: rank for rank, one in enumerate(read) if one is not None}
    if len(found) > 1:
        said = ", ".join(f"rank {rank} {name} ({digest[:16]})" for (name, digest), rank in found.items())
        raise RankMismatch(f"the ranks found different checkpoints: {said}", hint="give all of them the same step")
