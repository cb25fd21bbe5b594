"""Compute the next sequence number, which exceeds the numbers of all checkpoints, published or restorable."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from ckstore.catalog.queries import CatalogListing, Counted
from ckstore.errors import CatalogUnavailable, DamagedBlob, SaveFailed
from ckstore.fs import dirfd_stat
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import MAX_SEQUENCE, WIDEST_GAP, CheckpointKey, greatest_in_order
from ckstore.objects import trash
from ckstore.objects.layout import MANIFEST
from ckstore.ops.config_file import LEAST_SEQUENCE, setting_or_none
from ckstore.ops.context import Context
from ckstore.ops.index.facts import facts_at, facts_in, newest_by_catalog
from ckstore.ops.index.reconcile import write_again
from ckstore.ops.manifest_cache import RunListing


def next_sequence(context: Context, counted: Counted | None = None, least: int | None = None) -> int:
    """Return a number greater than the sequence number of every checkpoint that is published or can be restored.

    Args:
        context: The store.
        counted: The count of checkpoints from the catalog, if this save queried the catalog for pieces.
        least: A number that the result must exceed. If None, it is read from the settings.
    """
    runs = context.known.directories.look(context.layout)
    known = _SequenceNumbers(context)
    known.look(*_asked(context, runs, context.known.greatest_sequence.value, counted))
    greatest = known.greatest()
    # Every number up to `WIDEST_GAP` is valid, since even the first number may be that large. Whether a greater number
    # is valid depends on all numbers.
    if greatest > WIDEST_GAP:
        greatest = sequence_limit(context)
    if least is None:  # an error is ignored, since opening the store reported it
        least = setting_or_none(context.layout, LEAST_SEQUENCE) or 0
    if least > greatest + WIDEST_GAP:  # the number is forged, and the numbers after it would not be valid
        least = 0
    _look_at_waiting(context, greatest)
    sequence = max(greatest, context.known.greatest_sequence.value, least) + 1
    if sequence > MAX_SEQUENCE:
        msg = f"{context.layout.root} has no sequence number left: a checkpoint has {MAX_SEQUENCE}, the greatest"
        raise SaveFailed(msg, hint="ckstore log --json shows which: move its directory out of the store")
    # Record the number before the save publishes, so that no other thread of this process uses it.
    context.known.greatest_sequence.raise_to(sequence)
    context.tell_passed_over()
    if known.looked:
        # Do this last, since other threads then assume that the greatest known number covers these checkpoints.
        context.known.directories.judged(runs, known.torn)
    return sequence


def _look_at_waiting(context: Context, greatest: int) -> None:
    """Raise the greatest known number at least to the number of every dropped checkpoint that can be restored."""
    # `undo` restores a checkpoint with its number. A checkpoint that is saved before the undo must have a greater
    # number. Otherwise this checkpoint would not be the newest after the undo, and a rule could drop it.
    layout, known = context.layout, context.known
    names = frozenset(name for name in trash.names_in(layout.trash) if trash.former_place(name) is not None)
    fresh = names - known.waiting
    if len(fresh) > _MANY:
        # Read only the manifests that were written last, since numbers grow with time, and reading all manifests could
        # take long.
        written = {
            name: found.st_mtime_ns for name in fresh if (found := dirfd_stat.find(layout.trash / name / MANIFEST))
        }
        fresh = frozenset(sorted(written, key=written.__getitem__)[-_MANY:])
    for name in fresh:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError, DamagedBlob):  # it cannot be restored
            sequence = facts_in(context, layout.trash / name).sequence
            if sequence <= max(greatest, known.greatest_sequence.value) + WIDEST_GAP:  # a greater number is not valid
                known.greatest_sequence.raise_to(sequence)
    known.waiting = names  # set this last, since other threads rely on it


def sequence_limit(context: Context) -> int:
    """Return the greatest valid sequence number in the store (`model.order`)."""
    known = _SequenceNumbers(context)
    known.look({place for place, stamp in context.layout.stamps().items() if stamp is not None}, _rows(context, None))
    known.check(place for place, sequence in [*known.sequences.items()] if sequence > WIDEST_GAP)
    return greatest_in_order(known.sequences.values())


_MANY = 20  # with more checkpoints, listing the runs is faster than inspecting each directory
# The maximum age in seconds of a count from the catalog that is reused. Sealing a checkpoint on a busy disk takes this
# long, and other processes may publish during that time anyway.
_FRESH_S = 0.25

Rows = dict[CheckpointKey, "tuple[Stamp, int]"]


def _asked(
    context: Context, runs: dict[str, RunListing], own: int, counted: Counted | None
) -> tuple[set[CheckpointKey], Rows]:
    """Return the checkpoints that this process must check, with the catalog rows of these and newer checkpoints."""
    unsure = {place for state in runs.values() for place in state.unsure}
    # Querying the catalog again would take a tenth of the time of a small save. During a longer save, other processes
    # may have published.
    if counted is not None and time.monotonic() - counted.at_s <= _FRESH_S:
        count, newest = counted.checkpoints, counted.newest
    else:
        try:
            count, newest = context.catalog.count_and_sequence()
        except CatalogUnavailable:
            return unsure, {}
    if len(unsure) > _MANY:
        names = {run: state.names for run, state in runs.items()}
        with context.layout.open_runs() as opened:
            found = newest_by_catalog(context, opened, None, names, newest=1)
        if found is not None:  # no other checkpoint can have the greatest number
            few = {*found.published}
            return few, _rows(context, few)
    if 2 * len(unsure) > count:
        return unsure, _rows(context, None)
    rows = _rows(context, unsure) if unsure else {}
    if newest > own:  # another process has published a checkpoint
        try:
            beyond = context.catalog.orders(beyond=own)
        except CatalogUnavailable:
            return unsure, {}
        rows |= _both(beyond)
    return unsure | rows.keys(), rows


def _rows(context: Context, places: Iterable[CheckpointKey] | None) -> Rows:
    try:
        listing = context.catalog.orders(places=places)
    except CatalogUnavailable:
        return {}
    if listing.wrong_count:
        write_again(context, (), damaged_count=listing.wrong_count)
    return _both(listing)


def _both(listing: CatalogListing) -> Rows:
    return {place: (stamp, listing.sequences[place]) for place, stamp in listing.stamps.items()}


class _SequenceNumbers:
    """The sequence numbers of checkpoints, from the catalog if their rows are current, otherwise from the manifests."""

    def __init__(self, context: Context) -> None:
        self.sequences: dict[CheckpointKey, int] = {}
        self.torn: set[CheckpointKey] = set()  # checkpoints without a readable manifest, which may be repaired later
        self.looked = False  # whether any checkpoint was checked
        self._context = context
        self._written: dict[CheckpointKey, int] = {}
        self._checked: set[CheckpointKey] = set()

    def look(self, places: set[CheckpointKey], rows: Rows) -> None:
        self.looked = self.looked or bool(places)
        layout = self._context.layout
        stamps = layout.stamps() if len(places) > _MANY else {place: layout.stamp(place) for place in places}
        for place in places:
            stamp = stamps.get(place)
            row = rows.get(place)
            if stamp is None:
                self.torn.add(place)
                continue
            self._written[place] = stamp.mtime_ns
            # The inode and times show that the row was made from this manifest, which need not be read again.
            if row is not None and row[0] == stamp and place not in self._context.known.distrusted:
                self.sequences[place] = row[1]
            else:
                self.check([place])

    def greatest(self) -> int:
        """Return the greatest number, or 0; check it by the manifest with this number and the last written manifest."""
        while self.sequences:
            by_order = sorted(self.sequences, key=self.sequences.__getitem__)
            by_time = sorted(self._written, key=self._written.__getitem__)
            # Read both manifests, since the row with the greatest number may be damaged, and the row of the last
            # manifest may have a number that is too small.
            suspects = {by_order[-1], by_time[-1]} - self._checked
            if not suspects:
                return self.sequences[by_order[-1]]
            self.check(suspects)
        return 0

    def check(self, places: Iterable[CheckpointKey]) -> None:
        """Read manifests, and repair the rows that differ."""
        for place in places:
            self._checked.add(place)
            try:
                facts = facts_at(self._context, place)
            except (FileNotFoundError, NotADirectoryError, PermissionError, DamagedBlob):
                self.torn.add(place)
                continue
            said = self.sequences.get(place)
            self.sequences[place] = facts.sequence
            if said is not None and said != facts.sequence:
                write_again(self._context, [place])
