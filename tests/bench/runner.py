"""Rounds: every case of a scenario once, in another order each time, all in fresh processes.

The order is drawn: where memory is taken back by a host, or a disk gets slower as it is used, each case is better or
worse off for the one before it, and if that were always the same one, no number of rounds would tell.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.bench import states
from tests.bench.case import Case, Scenario
from tests.bench.child import Settings, run_forked
from tests.bench.places import Place
from tests.bench.usage import sync_filesystem

Tell = Callable[[str], None]


@dataclass
class Found:
    """What a run gave.

    Attributes:
        samples: By scenario and case, one a round (`tests.bench.child.Sample` as a dict).
        skipped: By scenario and case, why it was not run.
        errors: By scenario and case, what went wrong in a round.
    """

    samples: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    errors: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def run(scenarios: Sequence[Scenario], place: Place, settings: Settings, rounds: int, tell: Tell) -> Found:
    """Run all cases of all scenarios; one that fails is told and left out of the rounds that follow."""
    found = Found()
    for scenario in scenarios:
        cases = _possible(scenario, place, settings, found)
        found.samples[scenario.name] = {case.name: [] for case in cases}
        found.errors[scenario.name] = {}
        for number in range(rounds):
            for case in in_order(cases, settings.sizes.seed, scenario.name, number):
                if case.name not in found.errors[scenario.name]:
                    said = _run_one(scenario, case, place, settings)
                    _keep(found, scenario, case, said)
                    tell(_line(scenario, case, number, said))
    return found


def in_order(cases: Sequence[Case], seed: int, scenario: str, number: int) -> list[Case]:
    """Return the cases in the order of a round, which follows from the seed."""
    order = list(cases)
    Random(f"{seed} {scenario} {number}").shuffle(order)
    return order


def _possible(scenario: Scenario, place: Place, settings: Settings, found: Found) -> list[Case]:
    reasons = found.skipped[scenario.name] = {}
    for case in scenario.cases:
        why = case.missing()
        if not why and scenario.place == "tmpfs" and place.tmpfs is None:
            why = "there is no tmpfs with enough room"
        if not why and settings.sizes.large_file and not _can_be_large(case):
            why = "it is not run with a state larger than memory"
        if not why and scenario.place == "xfs" and place.xfs is None:
            why = "there is no XFS"
        if not why and scenario.place == "fast" and place.fast is None:
            why = "there is no block device in memory"
        if settings.only and not case.name.startswith(settings.only):
            why = "it was left out with --only"
        if why:
            reasons[case.name] = why
    return [case for case in scenario.cases if case.name not in reasons]


def _can_be_large(case: Case) -> bool:
    return (case.role != "baseline" and case.name in ("ckstore", "torch.save", "safetensors")) or "write" in case.name


def _run_one(scenario: Scenario, case: Case, place: Place, settings: Settings) -> dict[str, Any]:
    base = {"tmpfs": place.tmpfs, "xfs": place.xfs, "fast": place.fast, "disk": place.path}[scenario.place]
    assert base is not None
    if scenario.place == "fast":  # reading names and inodes again takes no time there
        settings = replace(settings, drop_everything=False)
    if scenario.place == "tmpfs":
        settings = replace(settings, drop_everything=False, own_filesystem=False)
    folder = Path(base, "case")
    folder.mkdir()
    try:
        return run_forked(scenario, case, folder, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if settings.own_filesystem:  # what unlinking leaves to the journal counts for no lap
            sync_filesystem(base)


def _keep(found: Found, scenario: Scenario, case: Case, said: dict[str, Any]) -> None:
    if "error" in said:
        found.errors[scenario.name].setdefault(case.name, []).append(said["error"])
    else:
        found.samples[scenario.name][case.name].append(said)


def _line(scenario: Scenario, case: Case, number: int, said: dict[str, Any]) -> str:
    what = f"error: {said['error']}" if "error" in said else f"{sum(said['seconds']):.3f} s"
    return f"{scenario.name} {number + 1}: {case.name}: {what}"


def room_needed(sizes: states.Sizes, scenarios: Sequence[Scenario]) -> int:
    """Return how many bytes the filesystem needs for the largest case: a source, a first save, the changed tenths."""
    if all(scenario.place == "fast" for scenario in scenarios):
        return 2**26  # the disk is not used
    small_bytes = states.nbytes_of("small", sizes) if any(scenario.name == "small" for scenario in scenarios) else 0
    largest = max(states.nbytes_of("llm", sizes), small_bytes)
    return int(largest * (1.3 if sizes.large_file else 5)) + 2**30


def fast_room_needed(sizes: states.Sizes, scenarios: Sequence[Scenario]) -> int:
    """Return how many bytes of memory a block device needs; 0: no scenario wants one."""
    if not any(scenario.place == "fast" for scenario in scenarios):
        return 0
    return int(states.nbytes_of("llm", sizes) * 1.3) + 2**29
