"""The health of the tensors that one save stores: values that are not finite, and parts that no longer change.

A *part* is a value at the top level of the state, such as ``model``. The values of a piece are counted while its bytes
are read for another purpose, such as hashing. A piece that an earlier save counted is not counted again. A
`HealthCheck` belongs to one save. `Context.known.lineages` keeps the results of a few runs for their next saves. The
rules are in `model/manifest/health`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING

from ckstore.codecs.nonfinite import FORMS, FloatForm
from ckstore.errors import CkstoreError
from ckstore.model.manifest.captured import bytes_of
from ckstore.model.manifest.health import FINITE, Health, NonFinite, NonFiniteCount, Stillness, unchanged_text
from ckstore.model.manifest.lineage import CountedPieces, Counts, Lineage
from ckstore.ops.save.recorded_chunks import RecordedSource
from ckstore.tensors.walks import leaf_numbers

if TYPE_CHECKING:
    from ckstore.model.manifest.captured import ByteSource, Captured
    from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node, StorageRecord
    from ckstore.ops.context import Context

_ARRAYS = ("torch", "numpy")
_WHOLE_BYTES = 2 * 2**20  # a piece of at most this size is counted completely
_WINDOW_ALIGNMENT = 64  # a multiple of the size of each number
_MOST_PARTS = 64
"""The maximum number of parts. A state with more values at its top level counts as one part."""


class PieceCounter:
    """Counts values that are not finite in the bytes from `begin` to `end` of one piece.

    The caller passes the whole piece to `part`, in consecutive slices.
    """

    def __init__(self, check: HealthCheck, form: FloatForm, begin: int, end: int) -> None:
        self._check = check
        self._form = form
        self._begin = begin
        self._end = end
        self._at = 0
        self._count = FINITE

    def part(self, data: memoryview) -> None:
        """Count the values of the next slice of the piece, while the slice is in the processor's cache."""
        begin, end = max(0, self._begin - self._at), min(len(data), self._end - self._at)
        self._at += len(data)
        if begin < end:
            self._count = self._count.plus(self._form.count(data[begin:end]))

    def end(self, piece: str) -> None:
        """Record the count under the digest of the piece."""
        self._check.found(self._form, piece, self._count)


class HealthCheck:
    """Counts values that are not finite in the sources of one save; usable from several threads."""

    def __init__(
        self, sources: Sequence[ByteSource], forms: Sequence[FloatForm | None], before: CountedPieces, window_count: int
    ) -> None:
        self._sources = sources
        self._forms = forms
        self._by_source = {id(source): form for source, form in zip(sources, forms, strict=True)}
        self._before = before
        self._window_count = window_count
        self._known = before.counts
        self._counts: Counts = {}

    def form_of(self, source: ByteSource) -> FloatForm | None:
        """Return the number format of a source, or None if it has none or its values are not counted."""
        return self._by_source.get(id(source))

    def counting(self, source: ByteSource, nbytes: int) -> PieceCounter | None:
        """Return the counter for a piece of a source that has `nbytes` bytes, or None if it is not counted."""
        form = self.form_of(source)
        if form is None:
            return None
        # If the tensor had values that are not finite in the previous checkpoint, count all of its values. If only a
        # share of them were counted, some saves would find none.
        if nbytes <= _WHOLE_BYTES or source.name in self._before.sick:
            return PieceCounter(self, form, 0, nbytes)
        # Count a share of each piece, and not all values of a share of the pieces, so that a tensor that has diverged
        # completely is always detected.
        window = self._before.turn % self._window_count
        size = nbytes // self._window_count // _WINDOW_ALIGNMENT * _WINDOW_ALIGNMENT
        is_last = window == self._window_count - 1
        return PieceCounter(self, form, window * size, nbytes if is_last else (window + 1) * size)

    def counting_new(self, source: ByteSource, nbytes: int) -> PieceCounter | None:
        """Return the counter for a piece, like `counting`, but None if the piece was probably counted before.

        Such a piece is hashed first. If its digest is known, it is not counted again.
        """
        return None if source.name in self._before.settled else self.counting(source, nbytes)

    def knows(self, source: ByteSource, piece: str) -> bool:
        """Whether the count of a piece is known or not needed, so that the piece need not be read for it."""
        form = self.form_of(source)
        key = (piece, "" if form is None else form.name)
        return form is None or key in self._known or key in self._counts

    def found(self, form: FloatForm, piece: str, count: NonFiniteCount) -> None:
        """Record the count of a piece."""
        self._counts[piece, form.name] = count

    def found_in_pack(self, pack: memoryview, pieces: Iterable[tuple[ByteSource, str, int, int]]) -> None:
        """Count the adjacent pieces of a pack, each given as source, digest, start in the pack, and length in bytes."""
        # Check adjacent pieces together, because checking tens of thousands of small tensors one by one is slow.
        for form, group in groupby(pieces, key=lambda one: self.form_of(one[0])):
            if form is None:
                continue
            members = [*group]
            (_, _, first, _), (_, _, last, length) = members[0], members[-1]
            # The gaps between the pieces contain zeros, which are finite.
            is_finite = not form.has_nonfinite(pack[first : last + length])
            for _, piece, start, nbytes in members:
                self.found(form, piece, FINITE if is_finite else form.count(pack[start : start + nbytes]))

    def complete(self, storages: Sequence[StorageRecord]) -> CountedPieces:
        """Count the pieces that were not counted yet; `storages` are those of the sources, in order."""
        counts: Counts = {}
        settled: set[str] = set()
        sick: set[str] = set()
        for source, form, storage in zip(self._sources, self._forms, storages, strict=True):
            if form is None:
                continue
            # A state can have tens of thousands of storages with one finite piece. This shortcut is for them.
            if len(storage.extents) == 1:
                key = storage.extents[0].piece, form.name
                known = self._known.get(key)
                if known is not None:
                    settled.add(source.name)
                if (known or self._counts.get(key)) is FINITE:
                    counts[key] = FINITE
                    continue
            keys = [(extent.piece, form.name) for extent in storage.extents]
            if all(key in self._known for key in keys):
                settled.add(source.name)
            found = self._counted(source, form, storage, keys)
            counts |= found
            if any(count != FINITE for count in found.values()):
                sick.add(source.name)
        return CountedPieces(counts, frozenset(settled), frozenset(sick), self._before.turn + 1)

    def _counted(
        self, source: ByteSource, form: FloatForm, storage: StorageRecord, keys: Sequence[tuple[str, str]]
    ) -> Counts:
        """Return the counts of the pieces of a storage; read those that were not counted yet."""
        counts: Counts = {}
        can_read = not isinstance(source, RecordedSource)
        # If one piece has values that are not finite, count all pieces of the storage completely.
        is_sick = can_read and any(self._counts.get(key, FINITE) != FINITE for key in keys)
        at = 0
        for key, extent in zip(keys, storage.extents, strict=True):
            found = self._known.get(key) or self._counts.get(key)
            if can_read and (is_sick or found is None):
                found = form.count(bytes_of(source, at, at + extent.length))
            if found is not None:
                counts[key] = found
            at += extent.length
        whole = (_pieces(storage), form.name)
        # If a storage is reused without being read, only the sum over its pieces may be known.
        if not can_read and (known := self._known.get(whole)) is not None:
            counts[whole] = known
        return counts


def check_of(
    captured: Captured, before: CountedPieces, share: float, cuts: Sequence[int] | None = None
) -> HealthCheck | None:
    """Return the counter for the values of a save, or None if `share` is 0.

    Args:
        captured: The state.
        before: The counts of the previous checkpoint.
        share: The share of the values to count in new, large pieces.
        cuts: How many sources make up each storage. If None, each storage is one source.
    """
    if not share:
        return None
    forms = forms_of(captured.leaves, len(captured.sources) if cuts is None else len(cuts))
    if cuts is not None:
        forms = [form for form, count in zip(forms, cuts, strict=True) for _ in range(count)]
    return HealthCheck(captured.sources, forms, before, max(1, round(1 / share)))


def forms_of(leaves: Sequence[LeafRecord], storage_count: int) -> list[FloatForm | None]:
    """Return the number format of each storage, or None if its values cannot be counted."""
    found: list[FloatForm | None] = [None] * storage_count
    if find_spec("numpy") is None:  # values cannot be counted without NumPy, but torch and saves work
        return found
    mixed: set[int] = set()
    seen: set[int] = set()
    for leaf in leaves:
        form = FORMS.get(leaf.dtype) if leaf.kind in _ARRAYS else None
        if leaf.storage in seen and form is not found[leaf.storage]:
            mixed.add(leaf.storage)
        if form is not None and leaf.offset % form.item_bytes:
            mixed.add(leaf.storage)
        seen.add(leaf.storage)
        found[leaf.storage] = form
    return [None if i in mixed else form for i, form in enumerate(found)] if mixed else found


def lineage_of(context: Context, run: str, parent: str | None) -> Lineage | None:
    """Return the facts about the parent of a save, or None if the parent is not in the store."""
    if parent is None:
        return None
    known = context.known.lineages.get(run)
    if known is None or known.id != parent:
        known = _read(context, parent)
    return known


def _read(context: Context, parent: str) -> Lineage | None:
    from ckstore.ops.refs.find import open_directory

    try:
        with open_directory(context, parent) as directory:
            return _of_manifest(directory.manifest, directory.manifest_id)
    except (CkstoreError, OSError):
        # The parent was deleted, is damaged, or is in another store, so this checkpoint begins a new lineage. The facts
        # are only needed to judge the health of the checkpoint, so an error here must not fail the save.
        return None


def _of_manifest(manifest: Manifest, manifest_id: str) -> Lineage:
    """Return the facts about the tensors in a manifest."""
    forms = forms_of(manifest.leaves, len(manifest.storages))
    health = manifest.health
    counted = CountedPieces()
    if health is not None:
        sick = frozenset(one.name for one in health.nonfinite)
        counted = CountedPieces(_counts_in(manifest, forms, health), sick=sick)
    names = frozenset(leaf.name for leaf in manifest.leaves if forms[leaf.storage] is not None)
    return Lineage(manifest_id, manifest.step, health, counted, _parts(manifest, forms), names)


def _counts_in(manifest: Manifest, forms: Sequence[FloatForm | None], health: Health) -> Counts:
    sums = {one.name: NonFiniteCount(one.nan, one.inf) for one in health.nonfinite}
    counts: Counts = {}
    for storage, name in _first_names(manifest.leaves).items():
        form, record = forms[storage], manifest.storages[storage]
        if form is None:
            continue
        if name in sums:
            counts[_pieces(record), form.name] = sums[name]
        else:
            counts.update(((extent.piece, form.name), FINITE) for extent in record.extents)
    return counts


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The facts about the tensors of the checkpoint of a save, and about those of its parent."""

    lineage: Lineage  # of the checkpoint, without its id, and without its step if the store chooses the step
    before: Lineage | None  # of its parent

    def of_published(self, manifest: Manifest, manifest_id: str) -> Lineage:
        """Return the facts for the next save."""
        return replace(self.lineage, id=manifest_id, step=manifest.step)

    def warnings(self, name: str) -> list[str]:
        """Return warnings about problems of the checkpoint `name` that its parent did not have."""
        health = self.lineage.health or Health()
        old = Health() if self.before is None or self.before.health is None else self.before.health
        found = []
        if health.unhealthy and not old.unhealthy:
            found.append(f"{name} is unhealthy: {health.unhealthy}. latest-healthy names the newest healthy one")
        if new := [key for key in health.unchanged if key not in old.unchanged]:
            count = min(health.parts[key].now for key in new)
            found.append(
                f"{name} has the same {unchanged_text(new)} as the {count} checkpoints before it, although the step "
                "advances. Does the training still change these tensors?"
            )
        return found


def judged(draft: Manifest, counted: CountedPieces, before: Lineage | None, step: int | None) -> HealthVerdict:
    """Return the facts about a checkpoint to be published at `step`; without a step, the store chooses one."""
    forms = forms_of(draft.leaves, len(draft.storages))
    usual = (
        {} if before is None or before.health is None else {one.name: one.usual_inf for one in before.health.nonfinite}
    )
    counts = counted.counts
    bad = any(count is not FINITE and count != FINITE for count in counts.values())
    found = []
    for storage, name in _first_names(draft.leaves).items() if bad else ():
        form = forms[storage]
        count = FINITE if form is None else _count(draft.storages[storage], form, counts)
        if count == FINITE:
            continue
        # The number of infinite values at the first save of a tensor is its usual number. For a tensor that was saved
        # before without infinite values, the usual number is 0.
        was_counted = before is not None and before.health is not None and name in before.names
        found.append(NonFinite(name, count.nan, count.inf, usual.get(name, 0) if was_counted else count.inf))
    parts = _parts(draft, forms)
    advanced = before is not None and (step is None or step > before.step)
    health = Health(tuple(found), _stillness(parts, before, advanced=advanced))
    names = frozenset(leaf.name for leaf in draft.leaves if forms[leaf.storage] is not None)
    return HealthVerdict(Lineage("", step or 0, health, counted, parts, names), before)


def _stillness(parts: Mapping[str, int], before: Lineage | None, *, advanced: bool) -> dict[str, Stillness]:
    if before is None:
        return dict.fromkeys(parts, Stillness())
    old = {} if before.health is None else before.health.parts
    return {
        key: old.get(key, Stillness()).then(equal=before.parts[key] == token, advanced=advanced)
        if key in before.parts
        else Stillness()
        for key, token in parts.items()
    }


def _count(storage: StorageRecord, form: FloatForm, counts: Counts) -> NonFiniteCount:
    if (whole := counts.get((_pieces(storage), form.name))) is not None:
        return whole
    found = FINITE
    for extent in storage.extents:
        found = found.plus(counts.get((extent.piece, form.name), FINITE))
    return found


def _pieces(storage: StorageRecord) -> str:
    return " ".join(extent.piece for extent in storage.extents)


def _first_names(leaves: Iterable[LeafRecord]) -> dict[int, str]:
    """Return the name of the first tensor of each storage."""
    found: dict[int, str] = {}
    for leaf in leaves:
        found.setdefault(leaf.storage, leaf.name)
    return found


def _parts(manifest: Manifest, forms: Sequence[FloatForm | None]) -> dict[str, int]:
    """Return a token for each part; the token of a part changes if one of its floating-point tensors changes."""
    found: dict[str, list[object]] = defaultdict(list)
    for key, number in _by_part(manifest.state):
        leaf = manifest.leaves[number]
        if forms[leaf.storage] is not None:
            extents = manifest.storages[leaf.storage].extents
            pieces = [extent.piece for extent in extents]
            found[key].append((leaf.name, leaf.dtype, leaf.shape, leaf.offset, leaf.strides, *pieces))
    # A token may depend on the process, since tokens are compared in this process only.
    return {key: hash(tuple(own)) for key, own in found.items()}


def _by_part(state: Node) -> Iterable[tuple[str, int]]:
    """Yield the number of each leaf with the key of its part; the key is empty if the leaf is in no part."""
    from ckstore.model.manifest.nodes import DICTS, decode_key

    is_dict = isinstance(state, list) and state[0] in DICTS and len(state[1]) <= _MOST_PARTS
    if not is_dict:
        yield from (("", number) for number in leaf_numbers(state))
        return
    for own, item in state[1]:
        if isinstance(item, list) and item[0] == "leaf":
            yield "", item[1]
            continue
        key = str(decode_key(own))
        yield from ((key, number) for number in leaf_numbers(item))
