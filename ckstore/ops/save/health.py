"""What one save finds in the tensors that it stores: values that are not finite, and parts that no longer change.

Values are counted by piece, where its bytes pass anyway: a piece that was counted before is not read for it. A
`HealthCheck` is for one save; what is known of a checkpoint stays in `Context.known.lineages`, by run, for the next
one. The rules: `model/manifest/health`.
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
from ckstore.model.manifest.health import FINITE, Health, NonFinite, NonFiniteCount, Stillness, unchanged_text
from ckstore.model.manifest.lineage import CountedPieces, Counts, Lineage
from ckstore.ops.save.packing import bytes_of
from ckstore.ops.save.recorded import RecordedSource
from ckstore.tensors.walks import leaf_numbers

if TYPE_CHECKING:
    from ckstore.model.manifest.captured import ByteSource, Captured
    from ckstore.model.manifest.manifest import LeafRecord, Manifest, Node, StorageRecord
    from ckstore.ops.context import Context

_ARRAYS = ("torch", "numpy")
_MOST_PARTS = 64
"""A state with more values at its top level is a flat one, and counts as one part."""


class Counting:
    """Counts what is not finite in the parts of one piece, or in each so many of them."""

    def __init__(self, check: HealthCheck, form: FloatForm, every: int, first: int) -> None:
        self._check = check
        self._form = form
        self._every = every
        self._until_next = first
        self._count = FINITE

    def part(self, data: memoryview) -> None:
        """Take the next part, while the processor's cache has it."""
        if not self._until_next:
            self._count = self._count.plus(self._form.count(data))
            self._until_next = self._every
        self._until_next -= 1

    def end(self, piece: str) -> None:
        """Take note of the digest of the piece."""
        self._check.found(self._form, piece, self._count)


class HealthCheck:
    """Counts what is not finite in the sources of one save; for several threads."""

    def __init__(
        self, sources: Sequence[ByteSource], forms: Sequence[FloatForm | None], before: CountedPieces, every: int
    ) -> None:
        self._sources = sources
        self._forms = forms
        self._by_source = {id(source): form for source, form in zip(sources, forms, strict=True)}
        self._before = before
        self._every = every
        self._known = before.counts
        self._counts: Counts = {}

    def form_of(self, source: ByteSource) -> FloatForm | None:
        """Return the form of the numbers in a source; None: it has none, or they are not counted."""
        return self._by_source.get(id(source))

    def counting(self, source: ByteSource, part_count: int) -> Counting | None:
        """Return what counts a piece of a source that comes in so many parts; None: it is not counted."""
        form = self.form_of(source)
        if form is None:
            return None
        # At least one part of each piece: a tensor that has diverged as a whole is always found.
        # What had such values before is looked at wholly: it would seem healthy when another part has its turn.
        every = 1 if source.name in self._before.sick else min(self._every, part_count)
        return Counting(self, form, every, self._before.turn % every)

    def counting_new(self, source: ByteSource, part_count: int) -> Counting | None:
        """As `counting`; None also if its bytes are likely known: they are hashed first, and then need no counting."""
        return None if source.name in self._before.settled else self.counting(source, part_count)

    def knows(self, source: ByteSource, piece: str) -> bool:
        """Whether nothing of a piece is to be read for this."""
        form = self.form_of(source)
        key = (piece, "" if form is None else form.name)
        return form is None or key in self._known or key in self._counts

    def found(self, form: FloatForm, piece: str, count: NonFiniteCount) -> None:
        """Take note of the count of a piece."""
        self._counts[piece, form.name] = count

    def found_in_pack(self, pack: memoryview, pieces: Iterable[tuple[ByteSource, str, int, int]]) -> None:
        """Count pieces that lie in a pack one after another, given by source, digest, start and length."""
        # Together: tens of thousands of small tensors are not looked at one by one.
        for form, group in groupby(pieces, key=lambda one: self.form_of(one[0])):
            if form is None:
                continue
            members = [*group]
            (_, _, first, _), (_, _, last, length) = members[0], members[-1]
            # The bytes between them are zeros.
            is_finite = not form.has_nonfinite(pack[first : last + length])
            for _, piece, start, nbytes in members:
                self.found(form, piece, FINITE if is_finite else form.count(pack[start : start + nbytes]))

    def complete(self, storages: Sequence[StorageRecord]) -> CountedPieces:
        """Count what did not pass: storages are those of the sources, in order."""
        counts: Counts = {}
        settled: set[str] = set()
        sick: set[str] = set()
        for source, form, storage in zip(self._sources, self._forms, storages, strict=True):
            if form is None:
                continue
            at, is_settled = 0, True
            can_read = not isinstance(source, RecordedSource)
            keys = [(extent.piece, form.name) for extent in storage.extents]
            # What was found in one part is counted in all of them.
            is_sick = can_read and any(self._counts.get(key, FINITE) != FINITE for key in keys)
            for key, extent in zip(keys, storage.extents, strict=True):
                found = self._known.get(key)
                if found is None:
                    found, is_settled = self._counts.get(key), False
                if can_read and (is_sick or found is None):
                    found = form.count(bytes_of(source, at, at + extent.length))
                if found is not None:
                    counts[key] = found
                at += extent.length
            whole = (_pieces(storage), form.name)
            # Of a storage that was taken over unread only the sum may be known.
            if not can_read and (known := self._known.get(whole)) is not None:
                counts[whole] = known
            if is_settled:
                settled.add(source.name)
            if any(counts.get(key, FINITE) != FINITE for key in (*keys, whole)):
                sick.add(source.name)
        return CountedPieces(counts, frozenset(settled), frozenset(sick), self._before.turn + 1)


def check_of(
    captured: Captured, before: CountedPieces, share: float, cuts: Sequence[int] | None = None
) -> HealthCheck | None:
    """Return what counts the values of a save; `before`: what was counted before it. None: with a share of 0."""
    # `share`: of the values in pieces that are new and large. `cuts`: how many sources make up each storage; None: one.
    if not share:
        return None
    forms = forms_of(captured.leaves, len(captured.sources) if cuts is None else len(cuts))
    if cuts is not None:
        forms = [form for form, count in zip(forms, cuts, strict=True) for _ in range(count)]
    return HealthCheck(captured.sources, forms, before, max(1, round(1 / share)))


def forms_of(leaves: Sequence[LeafRecord], storage_count: int) -> list[FloatForm | None]:
    """Return the form of the numbers in each storage; None where its tensors have none, or several."""
    found: list[FloatForm | None] = [None] * storage_count
    if find_spec("numpy") is None:  # torch works without it, and so does a save
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
    """Return what is known of the checkpoint that a save continues; None: it has none, or that is not in the store."""
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
        # It was dropped, is damaged, or is in another store: then this checkpoint begins a line. A save never fails for
        # what is only a remark about it.
        return None


def _of_manifest(manifest: Manifest, manifest_id: str) -> Lineage:
    """Return what a manifest says of the tensors."""
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
class Judged:
    """What a save knows of the tensors of its checkpoint, and of those of its parent."""

    lineage: Lineage  # without its id, and its step if the store chooses that
    before: Lineage | None

    def of_published(self, manifest: Manifest, manifest_id: str) -> Lineage:
        """Return what is known, for the next save."""
        return replace(self.lineage, id=manifest_id, step=manifest.step)

    def warnings(self, name: str) -> list[str]:
        """Return what the user should know of the checkpoint of that name, and was not so of its parent."""
        health = self.lineage.health or Health()
        old = Health() if self.before is None or self.before.health is None else self.before.health
        found = []
        if health.unhealthy and not old.unhealthy:
            found.append(
                f"{name} is unhealthy: {health.unhealthy}; latest-healthy names the newest one that is healthy"
            )
        if new := [key for key in health.unchanged if key not in old.unchanged]:
            count = min(health.parts[key].now for key in new)
            found.append(
                f"{name} has the same {unchanged_text(new)} as the {count} checkpoints before it, while the step "
                "advances: does the training still change what is saved?"
            )
        return found


def judged(draft: Manifest, counted: CountedPieces, before: Lineage | None, step: int | None) -> Judged:
    """Return what is known of a checkpoint that is to be published at a step; None: at one that the store chooses."""
    forms = forms_of(draft.leaves, len(draft.storages))
    usual = (
        {} if before is None or before.health is None else {one.name: one.usual_inf for one in before.health.nonfinite}
    )
    counts = counted.counts
    bad = {key for key, count in counts.items() if count != FINITE}
    found = []
    for storage, name in _first_names(draft.leaves).items() if bad else ():
        form = forms[storage]
        count = FINITE if form is None else _count(draft.storages[storage], form, counts)
        if count == FINITE:
            continue
        # A tensor that was finite before, or has another number of infinite values, did not always have them.
        was_counted = before is not None and before.health is not None and name in before.names
        found.append(NonFinite(name, count.nan, count.inf, usual.get(name, 0) if was_counted else count.inf))
    parts = _parts(draft, forms)
    advanced = before is not None and (step is None or step > before.step)
    health = Health(tuple(found), _stillness(parts, before, advanced=advanced))
    names = frozenset(leaf.name for leaf in draft.leaves if forms[leaf.storage] is not None)
    return Judged(Lineage("", step or 0, health, counted, parts, names), before)


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
    """Return for each part what differs if one of its tensors of floating point numbers does."""
    found: dict[str, list[object]] = defaultdict(list)
    for key, number in _by_part(manifest.state):
        leaf = manifest.leaves[number]
        if forms[leaf.storage] is not None:
            extents = manifest.storages[leaf.storage].extents
            pieces = [extent.piece for extent in extents]
            found[key].append((leaf.name, leaf.dtype, leaf.shape, leaf.offset, leaf.strides, *pieces))
    # Compared in this process only.
    return {key: hash(tuple(own)) for key, own in found.items()}


def _by_part(state: Node) -> Iterable[tuple[str, int]]:
    """Give the numbers of all leaves with the key of their part; that of the state itself is empty."""
    from ckstore.model.manifest.nodes import DICTS, decode_key

    is_dict = isinstance(state, list) and state[0] in DICTS and len(state[1]) <= _MOST_PARTS
    if not is_dict:
        yield from (("", number) for number in leaf_numbers(state))
        return
    for own, item in state[1]:
        is_value = isinstance(item, list) and item[0] == "leaf"
        key = "" if is_value else str(decode_key(own))
        yield from ((key, number) for number in leaf_numbers(item))
