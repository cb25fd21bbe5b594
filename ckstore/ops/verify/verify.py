"""Verify all data, or the data that was verified longest ago, and report and repair damage.

A quick verification reads no blobs.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ckstore.errors import BadInput
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.verify_report import Away, Damage, Mode, StoreFinding, VerifyReport, with_away
from ckstore.model.sizes import is_number
from ckstore.model.times import text_of_time
from ckstore.objects.checkpoints import holder_names_at
from ckstore.objects.documents.verify_times import read_checked, remember_checked
from ckstore.objects.last_links import blobs_in
from ckstore.objects.layout import BLOBS
from ckstore.ops.check.verifier import Unit, Verifier, VerifyOrder
from ckstore.ops.pace import RateLimiter, ReadBudget
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.verify.last_readings import record_readings

if TYPE_CHECKING:
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.documents.verify_times import CheckedTimes, Copy
    from ckstore.ops.context import Context, CopySource
    from ckstore.ops.verify.repair import RepairOutcome


# The approximate size of a round, which visits its checkpoints in order. A round is large enough for the disk to read
# ahead, and small enough that the blobs that were read longest ago are still read first.
_ROUND_BYTES = 256 * 2**20
# The interval at which the times of reads are recorded. A verification that is killed after hours then loses only the
# times of the last minute.
_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a verification."""

    # The share of the blobs to read, greater than 0; None for all blobs. Blobs that were read longest ago come first.
    sample: float | None = None
    # The time in seconds for all reads; None for no limit. A read is not started if it would end later. Blobs that were
    # read longest ago come first.
    budget_s: float | None = None
    rate_bytes_s: float | None = None  # the maximum rate in bytes per second; None for no limit
    quick: bool = False  # read no data
    repair: bool = False  # move damaged blobs to quarantine, and replace them with intact copies
    repair_from: tuple[Path, ...] = ()  # other stores and directories with copies
    copies: CopySource | None = None  # a source of intact bytes, such as the remotes of the store
    progress: Progress | None = None  # called at intervals with the progress

    def __post_init__(self) -> None:
        if self.sample is not None and not (is_number(self.sample) and 0 < self.sample <= 1):
            msg = f"sample must be above 0 and at most 1, got {self.sample!r}"
            raise BadInput(msg)
        if self.budget_s is not None and not (is_number(self.budget_s) and 0 < self.budget_s < math.inf):
            raise BadInput(f"budget_s must be a number of seconds above 0, got {self.budget_s!r}")
        reading = (self.sample, self.budget_s, self.rate_bytes_s)
        if self.quick and any(option is not None for option in reading):
            raise BadInput("a quick verification reads no data: pass no sample, budget_s or rate_bytes_s")

    @property
    def mode(self) -> Mode:
        """The kind of verification."""
        if self.quick:
            return "quick"
        return "sampled" if self.budget_s is not None or (self.sample or 1) < 1 else "full"


@dataclass(slots=True)
class Inventory:
    """The blobs in the directories of some checkpoints, without reading them."""

    sizes: dict[Unit, int] = field(default_factory=dict)  # copy of a blob -> its size in bytes
    first: dict[Unit, int] = field(default_factory=dict)  # copy of a blob -> index of the first checkpoint that has it

    @classmethod
    def of(cls, context: Context, places: Sequence[CheckpointKey]) -> Inventory:
        """List the directories of checkpoints."""
        made = cls()
        for index, key in enumerate(places):
            for digest, status in blobs_in(context.layout.checkpoint(key) / BLOBS):
                unit = (status.st_dev, status.st_ino, digest)
                made.sizes[unit] = status.st_size
                made.first.setdefault(unit, index)
        return made


class Verification:
    """One run of `verify`."""

    def __init__(
        self, context: Context, places: Sequence[CheckpointKey], options: Options, *, everything: bool
    ) -> None:
        self._context = context
        self._places = places
        self._options = options
        self._everything = everything
        self._may_write = not context.readonly and not context.writes_disabled_because
        self._budget = ReadBudget(options.budget_s)
        # The inventory lists copies and not digests, since two files with the same digest can rot independently.
        self._inventory = Inventory.of(context, places)
        self._times: CheckedTimes = read_checked(context.layout)
        self._now_s = int(time.time())
        self._order: dict[CheckpointKey, VerifyOrder] = {}
        self._found: dict[CheckpointKey, list[Damage]] = {}
        self._remembered = False
        self._flushed_s = time.monotonic()

    def run(self) -> VerifyReport:
        """Verify, and repair if requested."""
        from ckstore.ops.verify.repair import RepairOutcome, could_heal, repair

        options = self._options
        rate = None if options.rate_bytes_s is None else RateLimiter(options.rate_bytes_s).wait
        chosen = self._chosen()
        with Verifier(
            self._context, self._reporter(chosen), pace=rate, budget=self._budget, quick=options.quick
        ) as checker:
            try:
                self._read(checker, chosen)
                findings = self._survey(checker)
            finally:
                self._remember(checker)
            done = RepairOutcome()
            if options.repair:
                wrong = [found.subject for found in findings if found.kind == "name" and found.harmful]
                # Repair after the whole verification, because only then are all intact copies known.
                done = repair(
                    self._context,
                    self._damage(),
                    options.repair_from,
                    canonical=wrong,
                    right={unit[:2] for unit in checker.good},
                    asked=options.copies,
                )
                self._look_again(checker, done)
                if done.repaired or done.quarantined or done.held:
                    findings = self._survey(checker, done)
        damage = self._damage()
        healable = () if options.repair or options.quick or options.budget_s else could_heal(self._context, damage)
        unread, oldest = self._age(checker)
        hurt = {found.key for found in damage if found.affects}
        report = VerifyReport(
            checkpoint_count=len(self._order),
            checked_bytes=checker.checked_bytes,
            decoded_bytes=checker.decoded_bytes,
            damage=tuple(damage),
            sample=1.0 if options.sample is None else float(options.sample),
            mode=options.mode,
            whole=tuple(key.name for key in self._in_order() if key not in hurt and key not in checker.away),
            findings=tuple(findings),
            blob_count=len(self._inventory.sizes),
            read_count=len(checker.good | checker.bad),
            unread_count=unread,
            oldest_check=oldest,
            in_time=not self._budget.ended,
            remembered=self._remembered,
            repaired=tuple(done.repaired),
            unrepaired=tuple(done.unrepaired),
            quarantined=tuple(done.quarantined),
            healable=healable,
        )
        away = [key for key in self._in_order() if key in checker.away]
        holders = {key: holder_names_at(self._context.layout.checkpoint(key)) for key in away}
        return with_away(report, [Away(*key.run_step, holders[key], key.directory) for key in away])

    # ------------------------------------------------------------------------------------- the reads

    def _chosen(self) -> list[Unit] | None:
        """Return the copies to read, beginning with those read longest ago, or None to read all in any order."""
        options, units = self._options, self._inventory.sizes
        if options.quick:
            return []
        if options.mode == "full":
            return None
        when = self._times.when
        # Copies of the same age are read in random order, so that samples differ even if the times cannot be stored.
        drawn = random.SystemRandom().random
        ordered = sorted(units, key=lambda unit: (when((unit[2], unit[1]), self._now_s), drawn()))
        return ordered[: math.ceil((options.sample or 1) * len(ordered))]

    def _read(self, checker: Verifier, chosen: list[Unit] | None) -> None:
        if chosen is None or self._options.budget_s is None:
            only = None if chosen is None else set(chosen)
            for key in self._places:
                self._visit(checker, key, only)
            return
        for batch in self._rounds(chosen):
            by_place: dict[int, dict[Unit, int]] = {}
            for position, unit in enumerate(batch):
                by_place.setdefault(self._inventory.first[unit], {})[unit] = position
            for index, units in by_place.items():
                self._visit(checker, self._places[index], units)
            if self._budget.ended:
                break
        # Then visit every checkpoint: check its manifest, find missing blobs and wrong sizes, and report the damaged
        # copies that it has.
        checker.lift_budget()
        for key in self._places:
            self._visit(checker, key, checker.bad)

    def _rounds(self, chosen: list[Unit]) -> list[list[Unit]]:
        """Divide the list into consecutive rounds of about `_ROUND_BYTES` each."""
        rounds: list[list[Unit]] = [[]]
        nbytes = 0
        for unit in chosen:
            if nbytes >= _ROUND_BYTES:
                rounds.append([])
                nbytes = 0
            rounds[-1].append(unit)
            nbytes += self._inventory.sizes[unit]
        return rounds

    def _visit(self, checker: Verifier, key: CheckpointKey, only: Container[Unit] | None) -> None:
        checked = checker.checkpoint(key, only)
        if checked is None:
            return
        place, damage = checked
        self._order[key] = place
        self._found[key] = damage
        if time.monotonic() - self._flushed_s > _FLUSH_S:
            self._remember(checker)

    def _reporter(self, chosen: list[Unit] | None) -> Callable[[int], None] | None:
        progress = self._options.progress
        if progress is None:
            return None
        sizes = {unit[:2]: size for unit, size in self._inventory.sizes.items()}
        if chosen is not None:
            wanted = {unit[:2] for unit in chosen}
            sizes = {inode: size for inode, size in sizes.items() if inode in wanted}
        total_bytes = sum(sizes.values())

        def report(done_bytes: int) -> None:
            progress(done_bytes, max(total_bytes, done_bytes))

        return report

    # ------------------------------------------------------------------------------------ the results

    def _in_order(self) -> list[CheckpointKey]:
        return sorted(self._order, key=lambda key: self._order[key])

    def _damage(self) -> list[Damage]:
        return [found for key in self._in_order() for found in self._found[key]]

    def _remember(self, checker: Verifier) -> None:
        """Record when blobs were read, for the next sample or budget."""
        self._flushed_s = time.monotonic()
        if not self._may_write or not (checker.good or checker.bad):
            return
        # Include damaged blobs, whose checkpoints are marked as damaged. Without this record, each sample would read
        # the damaged blobs again instead of other blobs.
        read: dict[Copy, int] = {(unit[2], unit[1]): self._now_s for unit in checker.good | checker.bad}
        present = {(unit[2], unit[1]) for unit in self._inventory.sizes}
        everything = self._everything

        def keep(copy: Copy) -> bool:
            return copy in present or not everything

        self._remembered = remember_checked(self._context.layout, read, keep)
        right = {unit[2] for unit in checker.good} - {unit[2] for unit in checker.bad}
        record_readings(self._context, right, self._now_s * 10**9)

    def _age(self, checker: Verifier) -> tuple[int, str]:
        """Return the number of copies that were never verified, and, if this is 0, the time of the oldest reading."""
        units = self._inventory.sizes
        read = checker.good | checker.bad
        times = [self._now_s if unit in read else self._times.when((unit[2], unit[1]), self._now_s) for unit in units]
        unread = times.count(0)
        if unread or not times:
            return unread, ""
        return 0, text_of_time(datetime.fromtimestamp(min(times), UTC))

    # ------------------------------------------------------------------------------------- after a repair

    def _survey(self, checker: Verifier, done: RepairOutcome | None = None) -> list[StoreFinding]:
        from ckstore.ops.verify.store_checks import survey

        if not self._everything and done is None:
            for error in checker.locked.values():
                raise error
            return []
        passed_over = {key: ("repaired", error) for key, error in (done.held if done else {}).items()}
        passed_over |= {key: ("checked", error) for key, error in checker.locked.items()}
        locked = [
            StoreFinding("locked", f"{key.name} was not {what}: {error.message}", key.name, harmful=True)
            for key, (what, error) in sorted(passed_over.items())
        ]
        if not self._everything:
            return locked
        closed = [
            StoreFinding("closed", f"{said}, so it was not checked", path)
            for path, said in sorted(self._context.layout.passed_over.items())
        ]
        return [*locked, *closed, *survey(self._context, checker, self._options.mode)]

    def _look_again(self, checker: Verifier, done: RepairOutcome) -> None:
        """Check the damaged checkpoints again; `checker` reads new copies only."""
        # After a full verification, the damage mark is removed if the whole checkpoint is intact.
        checker.lift_budget()
        healed = _BlobCopySet({repair.digest for repair in done.repaired})
        for key, damage in list(self._found.items()):
            if damage:
                self._visit(checker, key, None if self._options.mode == "full" else healed)


class _BlobCopySet(Container[Unit]):
    """Every copy of some blobs."""

    def __init__(self, digests: Container[str]) -> None:
        self._digests = digests

    def __contains__(self, unit: object) -> bool:
        return isinstance(unit, tuple) and unit[2] in self._digests


def verify(context: Context, ref: AnyRef | None, options: Options) -> VerifyReport:
    """Verify the checkpoint that `ref` names, or without `ref` all checkpoints; see `ckstore.Store.verify`."""
    keys = [find(context, ref).key] if ref is not None else sorted(key for key, _ in context.layout.published())
    return Verification(context, keys, options, everything=ref is None).run()
