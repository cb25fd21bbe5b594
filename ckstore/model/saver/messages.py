"""What trainer and saver say to each other, as values and as JSON. Session: docs/explanation/async.md.

The trainer says `Open` once, then an `Order` for each save, with the descriptor of its snapshot, and `Close` or nothing
at the end. The saver answers `Started`, and for each order `Taken`, `Status` as it goes on, `Publishing` before each
rename that could publish it, `Committed` right behind it, and `Done` or `Failed` at the end.

`Publishing` is a question: the saver waits for `Answer`, or for the end of the trainer, which is a yes. A no also comes
unasked, as soon as a save is given up, at any time: also before its order, or after it has ended. So a save that was
given up is not published, whether or not the trainer is there when the saver asks.

Both sides are the same version of ckstore on one machine, so what is read here is not checked against an adversary.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ckstore import errors
from ckstore.errors import CkstoreError, SaveFailed
from ckstore.model.canonical import canonical_json, encode_metric
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.describe import decoded_metadata, encode_metadata
from ckstore.model.manifest.info import CheckpointInfo, Note, SaveCounters
from ckstore.model.manifest.manifest import Description, LeafRecord
from ckstore.model.settings.patience import AS_SET, AskedPatience
from ckstore.model.training_identity import IfRunInUse, Parent

SaverState = Literal[
    "starting",
    "idle",
    "staging",
    "hashing",
    "writing",
    "syncing",
    "committing",
    "just committed",
    "closing",
    "compacting",
    "mirroring",
    "waiting",
]


@dataclass(frozen=True, slots=True)
class Open:
    """Open the store."""

    path: str
    catalog_path: str | None
    nice: int = 0


class SnapshotSpan(NamedTuple):
    """Where the bytes of one storage lie in the snapshot; an offset of -1: they do not, see `ReusedStorage`."""

    name: str
    offset: int
    nbytes: int


class Sample(NamedTuple):
    """Bytes of a storage that is kept, which lie in the snapshot so that they can be compared."""

    storage: int  # index of the storage in the state
    start: int  # where in it they start
    offset: int  # where they lie in the snapshot
    nbytes: int


class ReusedStorage(NamedTuple):
    """What an order takes from an earlier checkpoint of its run, since it was said to be unchanged."""

    step: int
    id: str
    # Index of a storage in the state -> its index there, and the step for which it was last copied whole.
    storages: dict[int, tuple[int, int]]
    samples: tuple[Sample, ...]  # what is to be compared
    # Those of `storages` that the caller did not name: the device's fingerprints say that they are the same.
    unnamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """Save what lies in a snapshot; its descriptor comes with it."""

    number: int  # grows with each order of a trainer
    run: str
    step: int | None
    about: Description  # its parent is None or an id
    tags: tuple[str, ...]
    if_exists: str
    parent: str = ""  # a ref of the parent, which the saver resolves; empty: none was named
    if_run_in_use: IfRunInUse = "append"
    # What changed of `ProcessCache.last_parents` in the trainer since the last order.
    last_parents: dict[str, Parent] = field(default_factory=dict)
    captured: Captured = field(default_factory=lambda: Captured(None, (), ()))  # the state; it has no sources
    places: tuple[SnapshotSpan, ...] = ()  # where the bytes of the storages are
    # The step at which an earlier saver may have published this order before it ended; None: at none.
    tried_step: int | None = None
    kept: ReusedStorage | None = None  # what is not in the snapshot; None: all is
    patience: AskedPatience = AS_SET


@dataclass(frozen=True, slots=True)
class Close:
    """There will be no more orders."""


@dataclass(frozen=True, slots=True)
class Started:
    """The store is open."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The saver has the snapshot of an order: the trainer may die."""

    number: int


@dataclass(frozen=True, slots=True)
class Status:
    """How far an order is."""

    number: int
    state: SaverState
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Publishing:
    """May the next rename publish it, at this step?"""

    number: int
    step: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an order may be published."""

    number: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """It is durable; tags, catalog and retention follow."""

    number: int
    info: CheckpointInfo


@dataclass(frozen=True, slots=True)
class Done:
    """Everything of an order is done."""

    number: int
    info: CheckpointInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """The save failed; `number` 0: the store could not be opened."""

    number: int
    error: CkstoreError


Message = Open | Order | Answer | Close | Started | Taken | Status | Publishing | Committed | Done | Failed
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Open, Order, Answer, Close, Started, Taken, Status, Publishing, Committed, Done, Failed)
}


def encode(message: Message) -> bytes:
    """Return a message as canonical JSON."""
    return canonical_json([type(message).__name__, _members(message)])


def decode(data: bytes) -> Message:
    """Return the message that `encode` made `data` of."""
    name, members = json.loads(data)
    kind = _KINDS[name]
    if kind is Order:
        members = _order(members)
    elif kind in (Committed, Done):
        members["info"] = info_from(members["info"])
    elif kind is Failed:
        members["error"] = _error(members["error"])
    message: Message = kind(**members)
    return message


def _members(message: Message) -> dict[str, Any]:
    if isinstance(message, Order):
        return _order_json(message)
    if isinstance(message, (Committed, Done)):
        return {"number": message.number, "info": info_json(message.info)}
    if isinstance(message, Failed):
        return {"number": message.number, "error": _error_json(message.error)}
    return asdict(message)


def _order_json(order: Order) -> dict[str, Any]:
    captured = order.captured
    members = {
        name: getattr(order, name)
        for name in ("number", "run", "step", "tags", "if_exists", "parent", "last_parents", "tried_step")
    }
    members["if_run_in_use"] = order.if_run_in_use
    members["about"] = {
        "metrics": {name: encode_metric(value) for name, value in order.about.metrics.items()},
        "metadata": order.about.metadata,
        "message": order.about.message,
        "parent": order.about.parent,
    }
    members["patience"] = asdict(order.patience)
    members["captured"] = [captured.state, captured.leaves, captured.name_chars]
    members["places"] = order.places
    kept = order.kept
    # In pairs: the keys of a JSON object are texts.
    members["kept"] = kept and [kept.step, kept.id, [*kept.storages.items()], kept.samples, kept.unnamed]
    return members


def _kept(members: list[Any]) -> ReusedStorage:
    step, manifest_id, storages, samples, unnamed = members
    kept = {index: (old_index, copied_step) for index, (old_index, copied_step) in storages}
    return ReusedStorage(step, manifest_id, kept, tuple(Sample(*sample) for sample in samples), tuple(unnamed))


def _order(members: dict[str, Any]) -> dict[str, Any]:
    about = members["about"]
    metrics = _metrics(about["metrics"])
    members["about"] = Description(metrics, about["metadata"], about["message"], about["parent"])
    members["tags"] = tuple(members["tags"])
    members["patience"] = AskedPatience(**members["patience"])
    members["last_parents"] = {run: Parent(*parent) for run, parent in members["last_parents"].items()}
    state, leaves, name_chars = members["captured"]
    members["captured"] = Captured(state, tuple(_leaf(leaf) for leaf in leaves), (), name_chars=name_chars)
    members["places"] = tuple(SnapshotSpan(*place) for place in members["places"])
    members["kept"] = None if members["kept"] is None else _kept(members["kept"])
    return members


def _leaf(members: list[Any]) -> LeafRecord:
    name, kind, dtype, shape, storage, offset, strides = members
    return LeafRecord(name, kind, dtype, tuple(shape), storage, offset, None if strides is None else tuple(strides))


def _metrics(encoded: dict[str, Any]) -> dict[str, int | float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in encoded.items()}


def info_json(info: CheckpointInfo) -> dict[str, Any]:
    """Return what is known of a checkpoint as JSON."""
    members = {name: getattr(info, name) for name in info.__slots__}
    members["metrics"] = {name: encode_metric(value) for name, value in info.metrics.items()}
    members["metadata"] = encode_metadata(info.metadata)
    members["notes"] = [[note.created, note.text] for note in info.notes]
    members["counters"] = None if info.counters is None else asdict(info.counters)
    return members


def info_from(members: dict[str, Any]) -> CheckpointInfo:
    """Return what `info_json` was given."""
    members["metrics"] = _metrics(members["metrics"])
    members["metadata"] = decoded_metadata(members["metadata"])
    members["notes"] = tuple(Note(*note) for note in members["notes"])
    if members["counters"] is not None:
        members["counters"] = SaveCounters(**members["counters"])
    for name in ("tags", "warnings", "unchanged"):
        members[name] = tuple(members[name])
    return CheckpointInfo(**members)


def _error_json(error: CkstoreError) -> list[Any]:
    fields = {name: value for name, value in vars(error).items() if not name.startswith("__")}
    return [type(error).__name__, list(error.args), fields]


def _error(encoded: list[Any]) -> CkstoreError:
    name, args, fields = encoded
    cls = getattr(errors, name, SaveFailed)
    error: CkstoreError = cls.__new__(cls, *args)
    error.args = tuple(args)
    error.__dict__.update({key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
    return error
