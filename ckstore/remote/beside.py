"""What was said about checkpoints after they were saved, brought to a remote: annotations, tags, pins."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.model.checkpoint.annotations import Annotations, parse_annotations
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES, parse_pin
from ckstore.model.digest import ALGORITHMS
from ckstore.model.seal import read, seal
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES, read_annotations
from ckstore.objects.documents.pins import read_pins, write_pin
from ckstore.ops.refs.protection import held
from ckstore.ops.refs.tags import tag_all
from ckstore.remote import keys
from ckstore.remote.asking import look
from ckstore.remote.small_objects import TAG_MAX_BYTES, RemoteTag, change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckstore.model.checkpoint.pins import Pin
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context
    from ckstore.remote.objects import Remote
    from ckstore.remote.record import Record
    from ckstore.remote.source import Source

_ALGORITHM = ALGORITHMS["xxh3_128"]


def merged(own: Annotations, other: Annotations) -> Annotations:
    """Return both: metrics of `own` before those of `other`, each note once, the oldest first."""
    notes = sorted({*own.notes, *other.notes}, key=lambda note: (note.created, note.text))
    return Annotations({**other.metrics, **own.metrics}, tuple(notes))


class Beside:
    """Brings small objects; those that this store brought before, and that are still as it left them, cost nothing."""

    def __init__(self, context: Context, remote: Remote, record: Record) -> None:
        self._context, self._remote, self._record = context, remote, record

    def push(self, infos: Sequence[CheckpointInfo]) -> None:
        """Bring what belongs to these checkpoints."""
        wanted = [*self._annotations(infos), *self._tags(infos), *self._pins(infos)]
        if not wanted:
            return
        found, _ = look(self._remote.objects, {key for key, *_ in wanted}, len(self._record.checkpoints))
        there = {key: listed.tag for key, listed in found.items()}
        for key, own, make, most_bytes in wanted:
            digest = _ALGORITHM.digest(own)
            if self._record.documents.get(key) == (digest, there.get(key, "")):
                continue
            left = change(self._remote, key, make, most_bytes=most_bytes)
            if left is not None:
                self._record.documents[key] = (digest, left)

    def _annotations(self, infos: Sequence[CheckpointInfo]) -> Iterator[_Wanted]:
        for info in infos:
            own = read_annotations(self._context.layout.checkpoint(*info.key))
            if own is not None:
                key = keys.Place(info.run, info.step, info.id).annotations
                yield key, own.render(), partial(_with_annotations, key, own), ANNOTATIONS_MAX_BYTES

    def _tags(self, infos: Sequence[CheckpointInfo]) -> Iterator[_Wanted]:
        ids = {info.key: info.id for info in infos}
        for name, target in sorted(self._context.layout.tags().items()):
            place = target[0], target[1]
            if place in ids:
                data = RemoteTag(*place, ids[place]).render()
                yield keys.tag(name), data, partial(_only, data), TAG_MAX_BYTES

    def _pins(self, infos: Sequence[CheckpointInfo]) -> Iterator[_Wanted]:
        ids = {info.id for info in infos}
        now = datetime.now(UTC)
        for pin in read_pins(self._context.layout):
            if pin.id in ids and not pin.expired(now):
                data = seal(pin.render())
                yield keys.pin(pin.name), data, partial(_only, data), PIN_MAX_BYTES


def _only(own: bytes, present: bytes | None) -> bytes:
    del present  # the newest push says what it is
    return own


def _with_annotations(key: str, own: Annotations, present: bytes | None) -> bytes:
    other = Annotations() if present is None else read(present, parse_annotations, key)
    return seal(merged(own, other).render())


if TYPE_CHECKING:
    _Wanted = tuple[str, bytes, Callable[[bytes | None], bytes | None], int]


def take_names(context: Context, source: Source, infos: Sequence[CheckpointInfo], warnings: list[str]) -> None:
    """Give checkpoints that were pulled the tags and pins that they have at a source; none that is here moves."""
    by_id = {info.id: info for info in infos}
    now = datetime.now(UTC)
    own = context.layout.tags()
    new: dict[str, list[str]] = {}
    for name, place in sorted(source.tags().items()):
        info = by_id.get(place.id)
        if info is None or info.key != place.key:
            continue
        target = own.get(name)
        if target is None:
            new.setdefault(info.id, []).append(name)
        elif (target[0], target[1]) != info.key:
            warnings.append(f"the tag {name} names {target[0]}@{target[1]} here and {info.name} at {source.name}")
    for checkpoint, names in new.items():
        tag_all(context, by_id[checkpoint], names)
    known = {pin.name for pin in read_pins(context.layout)}
    for name, data in sorted(source.pins().items()):
        try:
            pin = read(data, partial(_parse_pin, name), f"the pin {name} at {source.name}")
        except CkstoreError as error:
            warnings.append(f"ignored {error.message}")
            continue
        if pin.id in by_id and name not in known and not pin.expired(now):
            with held(context, by_id[pin.id]):
                write_pin(context.layout, pin)


def _parse_pin(name: str, data: bytes, where: str) -> Pin:
    return parse_pin(data, name, where)
