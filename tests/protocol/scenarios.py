"""The scenarios: small worlds that together show what each rule is for; and for each rule one in which it is missed."""

from __future__ import annotations

from dataclasses import dataclass

from tests.protocol.bounds import Scenario
from tests.protocol.world import Left, Mode

_ONE_DROPPED = Scenario("a saver, K dropped", Left(cuts=1, gcs=1, drops=1), savers="A", drop="K", relies=True)
_FAILING = Scenario("a save fails", Left(kills=1, opens=1, gcs=1, drops=1, failures=1), savers="A", old=False, drop="A")
_ONE_STEP = Scenario("one step twice, the same", Left(cuts=1), old=False, same="AB")
_TWO_DROPS = Scenario("two drops", Left(kills=1, gcs=1, drops=2), savers="A", drop="KA")
_ALL_GO = Scenario("all dropped, power cut", Left(cuts=1, gcs=1, drops=1), savers="", drop="K")
_LOST = Scenario("the catalog is lost", Left(losses=1, gcs=1, drops=1), savers="A", drop="K")
_MAPPED = Scenario("mapped, dropped", Left(gcs=1, drops=1), savers="A", drop="K", reader="map")
_NAME_LOST = Scenario("mapped, name lost", Left(gcs=1, drops=1), savers="A", canonical="", drop="K", reader="map")
_OPEN = Scenario("open, dropped", Left(gcs=1, drops=1), savers="A", drop="K", reader="open")
_SHORT_BLOB = Scenario("a short blob", Left(cuts=1, gcs=1), savers="A", old=False, canonical="s")
_TWO_SAVERS = Scenario("two savers, one collector", Left(gcs=1, failures=1), old=False)
_UNDONE = Scenario(
    "dropped, brought back",
    Left(kills=1, opens=1, gcs=2, drops=2, undos=1),
    savers="",
    canonical="",
    drop="K",
    undo=True,
)
_UNDONE_CUT = Scenario(
    "dropped, brought back, power cut", Left(cuts=1, gcs=1, drops=1, undos=1), savers="", drop="K", undo=True
)
SHORT: tuple[tuple[Scenario, tuple[Mode, ...]], ...] = (
    (_ONE_DROPPED, ("ordered", "weak")),
    (_FAILING, ("ordered",)),
    (_ONE_STEP, ("ordered", "weak")),
    (_TWO_DROPS, ("ordered",)),
    (_ALL_GO, ("ordered", "weak")),
    (_LOST, ("ordered",)),
    (_MAPPED, ("ordered",)),
    (_NAME_LOST, ("ordered",)),
    (_OPEN, ("ordered",)),
    (_SHORT_BLOB, ("ordered", "weak")),
    (_TWO_SAVERS, ("ordered",)),
    (_UNDONE, ("ordered",)),
    (_UNDONE_CUT, ("ordered", "weak")),
)
"""What is looked at each time: some seconds."""

FULL: tuple[tuple[Scenario, tuple[Mode, ...]], ...] = (
    *SHORT,
    (Scenario("two savers, K dropped", Left(kills=1, gcs=1, drops=1), drop="K", relies=True), ("ordered",)),
    (Scenario("one of two fails", Left(gcs=1, drops=1, failures=1), drop="K"), ("ordered",)),
    (Scenario("two drops, power cut", Left(cuts=1, gcs=1, drops=2), savers="A", drop="KA"), ("ordered", "weak")),
    (
        Scenario("the catalog is lost, kills", Left(1, 0, 1, 1, 1, 2, 0), savers="A", drop="KA"),
        ("ordered",),
    ),
    (
        Scenario("one step twice, kills", Left(kills=1, opens=1, gcs=1), old=False, same="AB"),
        ("ordered",),
    ),
    (
        Scenario("mapped, dropped, kills", Left(kills=1, gcs=2, drops=1), savers="A", drop="K", reader="map"),
        ("ordered",),
    ),
    (Scenario("a short blob twice", Left(kills=1, gcs=1), old=False, canonical="s"), ("ordered",)),
    (
        Scenario(
            "two dropped, brought back beside a save, power cut",
            Left(cuts=1, gcs=1, drops=2, undos=2),
            savers="A",
            drop="KA",
            undo=True,
        ),
        ("ordered", "weak"),
    ),
    (Scenario("a short blob twice, cut", Left(cuts=1, gcs=1), old=False, canonical="s"), ("ordered",)),
)
"""The larger bounds, beside the short ones: some minutes."""


@dataclass(frozen=True)
class Mutant:
    """Rules that are switched off together, and where that is seen.

    Attributes:
        rules: One rule; or two, of which each alone is enough.
        scenario, mode: Where it is missed.
    """

    rules: tuple[str, ...]
    scenario: Scenario
    mode: Mode = "ordered"


MUTANTS = (
    Mutant(("lock_names_path",), _FAILING),
    Mutant(("lock_until_acknowledged",), _FAILING),
    Mutant(("sweep_locks",), _FAILING),
    Mutant(("drop_locks", "empty_locks"), _OPEN),
    Mutant(("sync_blob",), _ONE_STEP),
    Mutant(("sync_staging",), _ONE_STEP, "weak"),
    Mutant(("sync_published",), _ONE_STEP),
    Mutant(("sync_existing",), _ONE_STEP),
    Mutant(("sync_new_run",), _ONE_STEP, "weak"),
    Mutant(("sync_kept",), _ONE_DROPPED, "weak"),
    Mutant(("sync_dropped",), _ALL_GO),
    Mutant(("sync_trash",), _ALL_GO, "weak"),
    Mutant(("sync_condemned", "relist_boot"), _ALL_GO),
    Mutant(("relist_boot",), _ALL_GO, "weak"),
    Mutant(("sweep_renames", "lock_names_path"), _FAILING),
    Mutant(("fail_renames",), _FAILING),
    Mutant(("condemn_renames",), _TWO_SAVERS),
    Mutant(("enter",), _FAILING),
    Mutant(("link_count", "link_count_again"), _TWO_SAVERS),
    Mutant(("link_count_again",), _TWO_SAVERS),
    Mutant(("lease",), _MAPPED),
    Mutant(("lease_last",), _NAME_LOST),
    Mutant(("reconcile",), _TWO_DROPS),
    Mutant(("forget_unused",), _TWO_DROPS),
    Mutant(("relist_lost",), _LOST),
    Mutant(("heal",), _SHORT_BLOB),
    Mutant(("undo_waits",), _UNDONE),
    Mutant(("undo_locks",), _UNDONE),
    Mutant(("undo_looks",), _UNDONE),
    Mutant(("sync_restored",), _UNDONE_CUT),
)
"""Every rule is in one of them; a rule that stands in a pair only is the second of two guards."""
