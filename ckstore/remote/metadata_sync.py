"""Pushes annotations, tags and pins, which can be added after a save, and copies tags and pins from a source."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from ckstore.errors import CkstoreError
from ckstore.model.checkpoint.annotations import Annotations, parse_annotations
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES
from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.seal import seal
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES, read_annotations
from ckstore.objects.documents.pins import read_pins, write_pin
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.failures import joined
from ckstore.ops.mirror_record import note_taken, read_mirrored
from ckstore.ops.refs import listing
from ckstore.ops.refs.labels import tag_all
from ckstore.ops.refs.protection import held
from ckstore.remote import keys
from ckstore.remote.key_lookup import look
from ckstore.remote.objects import OF_ALL, ObjectEntry, Remote
from ckstore.remote.record import RemoteRecord, read_record
from ckstore.remote.small_objects import TAG_MAX_BYTES, change, read_document, read_pin, tag_bytes
from ckstore.remote.source import Source

_ALGORITHM = ALGORITHMS["xxh3_128"]


def merged(own: Annotations, other: Annotations) -> Annotations:
    """Return the union of two annotations. Metrics of `own` take precedence. Notes are sorted by time."""
    notes = sorted({*own.notes, *other.notes}, key=lambda note: (note.created, note.text))
    return Annotations({**other.metrics, **own.metrics}, tuple(notes))


class MetadataObject(NamedTuple):
    """A small object with metadata of a checkpoint, to be written to a remote.

    Attributes:
        key: Its key.
        info: The checkpoint that it belongs to.
        own: The content according to this store.
        make: Returns the new content, given the content on the remote, or given None for a missing object.
        most_bytes: Limit of the content on the remote, in bytes. A larger object is refused.
    """

    key: str
    info: CheckpointInfo
    own: bytes
    make: Callable[[bytes | None], bytes | None]
    most_bytes: int

    @property
    def digest(self) -> str:
        """The digest of the content according to this store."""
        return _ALGORITHM.digest(self.own)


def annotations_of(context: Context, info: CheckpointInfo) -> Iterator[MetadataObject]:
    """Yield the annotations of a checkpoint, if it has any."""
    own = read_annotations(context.layout.checkpoint(info.key))
    if own is not None:
        key = keys.Place(info.run, info.step, info.id).annotations
        yield MetadataObject(key, info, own.render(), partial(_with_annotations, key, own), ANNOTATIONS_MAX_BYTES)


def tags_of(context: Context, infos: Iterable[CheckpointInfo]) -> Iterator[MetadataObject]:
    """Yield the tags of some checkpoints."""
    by_key = {info.key.any_generation: info for info in infos}
    for name, target in sorted(context.layout.tags().items()):
        info = by_key.get(target)
        if info is not None:
            data = tag_bytes(keys.Place(info.run, info.step, info.id))
            yield MetadataObject(keys.tag(name), info, data, partial(_replacement, data), TAG_MAX_BYTES)


def pins_of(context: Context, infos: Iterable[CheckpointInfo]) -> Iterator[MetadataObject]:
    """Yield the pins of some checkpoints that have not expired."""
    by_id = {info.id: info for info in infos}
    now = datetime.now(UTC)
    for pin in read_pins(context.layout):
        if pin.id in by_id and not pin.expired(now):
            data = seal(pin.render())
            yield MetadataObject(keys.pin(pin.name), by_id[pin.id], data, partial(_replacement, data), PIN_MAX_BYTES)


def restored_at(context: Context, remote: Remote, found: Mapping[str, ObjectEntry]) -> set[str]:
    """Return the keys of small objects that have an earlier content again, because the mirror was restored.

    An object whose content this store never pushed is left out, since another store wrote it.

    Args:
        context: The store.
        remote: Its mirror.
        found: The current entries of objects that this store pushed.
    """
    former, pushed = read_mirrored(context.layout, remote.name).former, read_record(context.layout, remote.name)
    changed = [key for key in found.keys() & former.keys() if pushed.documents.get(key, ("", ""))[1] != found[key].tag]
    contents = {key: remote.objects.get(key, ANNOTATIONS_MAX_BYTES) for key in changed}
    return {key for key, data in contents.items() if data is not None and _ALGORITHM.digest(data) in former[key]}


class MetadataPusher:
    """Pushes metadata objects.

    An object that this store pushed earlier, and that has not changed on either side since then, is not sent again.
    """

    def __init__(self, context: Context, remote: Remote, record: RemoteRecord) -> None:
        self._context, self._remote, self._record = context, remote, record

    def push(self, infos: Sequence[CheckpointInfo]) -> None:
        """Push the tags, pins and annotations of these checkpoints.

        Raises:
            CkstoreError: Some documents could not be pushed. The message names each.
        """
        said: list[MetadataObject] = []
        failed: dict[str, CkstoreError] = {}
        for info in infos:
            try:
                said += annotations_of(self._context, info)
            except CkstoreError as error:
                failed[f"the annotations of {info.shown}"] = error
        failed |= self.bring([*said, *tags_of(self._context, infos), *pins_of(self._context, infos)])
        if failed:
            raise joined(failed)

    def bring(self, wanted: Sequence[MetadataObject]) -> dict[str, CkstoreError]:
        """Push these objects. Return, by key, the errors of objects that could not be pushed."""
        if not wanted:
            return {}
        found, _ = look(self._remote.objects, {one.key for one in wanted}, len(self._record.checkpoints))
        taken = read_mirrored(self._context.layout, self._remote.name).documents
        failed: dict[str, CkstoreError] = {}
        for one in wanted:
            there = found[one.key].tag if one.key in found else ""
            pushed = self._record.documents.get(one.key)
            # Content that this store took from the remote is not pushed back, since another store may have changed the
            # object on the remote since then.
            if pushed == (one.digest, there) or (pushed is None and there and taken.get(one.key) == one.digest):
                continue
            try:
                left = change(self._remote, one.key, one.make, most_bytes=one.most_bytes)
            except OF_ALL:  # the remaining objects would also fail
                raise
            except CkstoreError as error:
                failed[one.key] = error
                continue
            if left is not None:
                self._record.documents[one.key] = (one.digest, left)
        return failed


def _shown(key: CheckpointKey) -> str:
    """Return the name of a checkpoint with the first digits of its id, since its step may have several checkpoints."""
    return f"{key.run}@{key.directory}"


def _replacement(own: bytes, present: bytes | None) -> bytes:
    del present  # the last push wins
    return own


def _with_annotations(key: str, own: Annotations, present: bytes | None) -> bytes:
    other = Annotations() if present is None else read_document(present, parse_annotations, key)
    return seal(merged(own, other).render())


def _is_unmoved(context: Context, source: Source, name: str, target: CheckpointKey) -> bool:
    """Whether a local tag still names the checkpoint that it named when it was taken from a source."""
    taken = read_mirrored(context.layout, source.name).documents.get(keys.tag(name))
    if taken is None:
        return False
    of_step = listing.infos(context, target.run, only=target.step.__eq__, superseded=True)
    named = (info for info in of_step if info.key.any_generation == target)
    return any(taken == _ALGORITHM.digest(tag_bytes(keys.Place(info.run, info.step, info.id))) for info in named)


def named_at(source: Source) -> set[str]:
    """Return the ids of the checkpoints that a tag or a pin names at a source."""
    found = {place.id for place in source.tags().values()}
    now = datetime.now(UTC)
    for name, data in source.pins().items():
        with suppress(CkstoreError):  # `take_names` reports a pin that cannot be read
            pin = read_pin(data, name, source.name)
            found |= set() if pin.expired(now) else {pin.id}
    return found


def take_names(
    context: Context,
    source: Source,
    infos: Sequence[CheckpointInfo],
    warnings: list[str],
    *,
    new: Container[CheckpointKey] = (),
) -> None:
    """Add the tags and pins of a source to local checkpoints.

    Args:
        context: The store to change.
        source: The source of the tags and pins.
        infos: Checkpoints of the store.
        warnings: A list to which messages for the user are appended.
        new: Keys of the checkpoints that were just pulled from the source, together with their annotations.
    """
    taken: set[str] = set()
    by_id = {info.id: info for info in infos}
    now = datetime.now(UTC)
    own = context.layout.tags()
    named: dict[str, list[str]] = {}
    for name, place in sorted(source.tags().items()):
        info = by_id.get(place.id)
        if info is None or info.key.run_step != place.run_step:
            continue
        target = own.get(name)
        if target == info.key.any_generation:
            continue
        # A tag that was taken from the source, and not moved locally since then, follows the tag on the source.
        if target is None or _is_unmoved(context, source, name, target):
            named.setdefault(info.id, []).append(name)
            taken.add(keys.tag(name))
        else:
            warnings.append(f"the tag {name} names {_shown(target)} locally and {_shown(info.key)} at {source.name}")
    if named:
        tag_all(context, [(by_id[checkpoint], names) for checkpoint, names in named.items()])
    known = {pin.name for pin in read_pins(context.layout)}
    for name, data in sorted(source.pins().items()):
        try:
            pin = read_pin(data, name, source.name)
        except CkstoreError as error:
            warnings.append(f"ignored {error.message}")
            continue
        if pin.id in by_id and name not in known and not pin.expired(now):
            with held(context, by_id[pin.id]):
                write_pin(context.layout, pin)
            taken.add(keys.pin(name))
    try:
        said = [one for info in infos if info.key in new for one in annotations_of(context, info)]
        if taken:
            said += (one for one in (*tags_of(context, infos), *pins_of(context, infos)) if one.key in taken)
        note_taken(context.layout, source.name, {one.key: one.digest for one in said})
    except (CkstoreError, OSError) as error:
        warnings.append(f"tags and notes of {source.name} were copied, but this could not be recorded: {why_of(error)}")
