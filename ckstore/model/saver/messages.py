"""The messages between trainer and saver, as values and as JSON. docs/explanation/async.md describes a session.

The trainer sends `Open` once, then an `Order` for each save, with the file descriptor of the snapshot. At the end, it
sends `Close` or nothing. The saver answers `Open` with `Started`. For each order, it sends `Taken`, `Status` during the
save, `Publishing` before each rename that could publish the checkpoint, `Committed` right after this rename, and `Done`
or `Failed` at the end.

`Publishing` is a question. The saver waits until it receives an `Answer`, or until the trainer ends, which means yes.
As soon as a save is abandoned, the trainer sends a negative `Answer`, even if the saver has not asked. It may send this
answer before the order of the save, or after the save has ended. An abandoned save is therefore not published, even if
the trainer has ended when the saver asks.

Both sides run the same version of ckstore on one machine, so messages are not checked for attacks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ckstore import errors
from ckstore.errors import CkstoreError, SaveFailed
from ckstore.model.canonical import canonical_json, encode_metric
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.info_message import decode_metrics, info_from, info_json
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
    """Open the store at `path` if its id is `uuid`, and pass the store to `attach` of each module in `attached`."""

    path: str
    uuid: str
    catalog_path: str | None
    nice: int = 0
    attached: tuple[str, ...] = ()


class SnapshotSpan(NamedTuple):
    """The location of the bytes of one storage in the snapshot; the offset -1 marks a storage in `ReusedStorage`."""

    name: str
    offset: int
    nbytes: int


class Sample(NamedTuple):
    """Bytes of a reused storage that are in the snapshot for comparison."""

    storage: int  # index of the storage in the state
    start: int  # offset of the bytes in the storage
    offset: int  # offset of the bytes in the snapshot
    nbytes: int


class ReusedStorage(NamedTuple):
    """The data that an order reuses from an earlier checkpoint of its run, because the data has not changed since."""

    step: int
    id: str
    # Index of a storage in the state -> the index of the storage in that checkpoint, and the step of its last complete
    # copy.
    storages: dict[int, tuple[int, int]]
    samples: tuple[Sample, ...]  # bytes to compare
    # The `storages` that the caller did not report as unchanged, but whose fingerprints on the device are equal.
    unnamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """Save the data in a snapshot, whose file descriptor is sent with the message."""

    number: int  # grows with each order of a trainer
    run: str
    step: int | None
    about: Description  # the parent in it is None or an id
    tags: tuple[str, ...]
    if_exists: str
    parent: str = ""  # a ref of the parent, which the saver resolves; empty if not given
    if_run_in_use: IfRunInUse = "append"
    # The changes of `ProcessCache.last_parents` in the trainer since the last order.
    last_parents: dict[str, Parent] = field(default_factory=dict)
    captured: Captured = field(default_factory=lambda: Captured(None, (), ()))  # the state; it has no sources
    places: tuple[SnapshotSpan, ...] = ()  # the locations of the bytes of the storages
    # The step at which an earlier saver may have published this order before that saver ended, or None.
    tried_step: int | None = None
    kept: ReusedStorage | None = None  # the data that is not in the snapshot; None if all data is in it
    patience: AskedPatience = AS_SET


@dataclass(frozen=True, slots=True)
class Close:
    """Announce that no more orders will follow."""


@dataclass(frozen=True, slots=True)
class Started:
    """Report that the store is open."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Report that the saver has the snapshot of an order, so that the trainer may exit."""

    number: int


@dataclass(frozen=True, slots=True)
class Status:
    """Report the progress of an order."""

    number: int
    state: SaverState
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Publishing:
    """Ask whether the next rename may publish the checkpoint of an order at this step."""

    number: int
    step: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer whether an order may be published."""

    number: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """Report that the checkpoint is durable; tags, catalog and retention follow."""

    number: int
    info: CheckpointInfo


@dataclass(frozen=True, slots=True)
class Done:
    """Report that an order is complete."""

    number: int
    info: CheckpointInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that the save failed, or, if `number` is 0, that the store could not be opened."""

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
    """Return the message in a result of `encode`."""
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
        error = message.error
        fields = {name: value for name, value in vars(error).items() if not name.startswith("__")}
        return {"number": message.number, "error": [type(error).__name__, list(error.args), fields]}
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
    members["captured"] = [captured.state, captured.leaves, captured.name_chars, captured.own_blobs]
    members["places"] = order.places
    kept = order.kept
    # Storages are sent as pairs, because the keys of a JSON object are strings.
    members["kept"] = kept and [kept.step, kept.id, [*kept.storages.items()], kept.samples, kept.unnamed]
    return members


def _order(members: dict[str, Any]) -> dict[str, Any]:
    about = members["about"]
    metrics = decode_metrics(about["metrics"])
    members["about"] = Description(metrics, about["metadata"], about["message"], about["parent"])
    members["tags"] = tuple(members["tags"])
    members["patience"] = AskedPatience(**members["patience"])
    members["last_parents"] = {run: Parent(*parent) for run, parent in members["last_parents"].items()}
    state, leaves, name_chars, own_blobs = members["captured"]
    members["captured"] = Captured(state, tuple(map(_leaf, leaves)), (), name_chars=name_chars, own_blobs=own_blobs)
    members["places"] = tuple(SnapshotSpan(*place) for place in members["places"])
    if members["kept"] is not None:
        step, manifest_id, pairs, samples, unnamed = members["kept"]
        storages = {index: (old_index, copied_step) for index, (old_index, copied_step) in pairs}
        samples = tuple(Sample(*sample) for sample in samples)
        members["kept"] = ReusedStorage(step, manifest_id, storages, samples, tuple(unnamed))
    return members


def _leaf(members: list[Any]) -> LeafRecord:
    name, kind, dtype, shape, storage, offset, strides = members
    return LeafRecord(name, kind, dtype, tuple(shape), storage, offset, None if strides is None else tuple(strides))


def _error(document: list[Any]) -> CkstoreError:
    name, args, fields = document
    cls = getattr(errors, name, SaveFailed)
    error: CkstoreError = cls.__new__(cls, *args)
    error.args = tuple(args)
    error.__dict__.update({key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
    return error
