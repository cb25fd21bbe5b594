"""The document of a run (JSON), and what is asked of it: medians, spreads, ratios."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.case import Scenario
from tests.bench.child import Settings
from tests.bench.places import Place
from tests.bench.runner import Found
from tests.bench.scenarios import all_scenarios

FORMAT = 2
_PACKAGES = ("ckstore", "torch", "numpy", "safetensors", "xxhash", "sqlite-utils", "tensorizer", "orbax-checkpoint")
_PROGRAMS = (("restic", "version"), ("borg", "--version"), ("dvc", "--version"))


def document(
    scenarios: Sequence[Scenario], found: Found, place: Place, settings: Settings, rounds: int
) -> dict[str, Any]:
    """Return everything that is known about a run, as values of JSON. Each scenario says of which run it is."""
    run = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "place": place.words,
        "rounds": rounds,
        "sizes": {name: value for name, value in vars(settings.sizes).items() if name != "large_file"},
        "larger_than_memory": bool(settings.sizes.large_file),
        "cold_by": "drop_caches" if settings.drop_everything else "posix_fadvise",
    }
    return {
        "format": FORMAT,
        "scenarios": {
            key_of(scenario.name, settings): {
                "title": f"{scenario.title}{' of a state larger than memory' if settings.sizes.large_file else ''}",
                "run": run,
                "cases": {
                    case.name: {"role": case.role, "samples": found.samples[scenario.name][case.name]}
                    for case in scenario.cases
                    if case.name in found.samples[scenario.name]
                },
                "skipped": found.skipped[scenario.name],
                "errors": found.errors[scenario.name],
            }
            for scenario in scenarios
        },
    }


def key_of(scenario: str, settings: Settings) -> str:
    """Return the name of a scenario in a document: with a state larger than memory it is another one."""
    return f"{scenario}-large" if settings.sizes.large_file else scenario


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the scenarios of both; of one that both have, the new."""
    order = [key for name in (s.name for s in all_scenarios()) for key in (name, f"{name}-large")]
    both = {**old.get("scenarios", {}), **new["scenarios"]} if old.get("format") == FORMAT else dict(new["scenarios"])
    return {"format": FORMAT, "scenarios": {name: both[name] for name in order if name in both}}


def machine() -> dict[str, Any]:
    """Return what matters of the machine, and nothing that names it."""
    model = next(
        (line.split(": ", 1)[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": ".".join(platform.release().split("-")[0].split(".")[:3]),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Return the versions of ckstore and its peers, as far as they are here."""
    out = {}
    for package in _PACKAGES:
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for program, option in _PROGRAMS:
        if shutil.which(program):
            done = subprocess.run([program, option], capture_output=True, text=True, timeout=60, check=False)
            out[program] = next((word for word in done.stdout.split() if word[0].isdigit()), "?")
    return out


class Results:
    """A document, read. Times are medians over the rounds of the sums over the laps, in seconds."""

    def __init__(self, read: Mapping[str, Any]) -> None:
        self.read = read
        self.scenarios: Mapping[str, Any] = read["scenarios"]

    def run(self, scenario: str) -> dict[str, Any]:
        """Return of which run a scenario is: date, machine, versions, place, rounds, sizes."""
        found: dict[str, Any] = self.scenarios[scenario]["run"]
        return found

    def samples(self, scenario: str, case: str) -> list[dict[str, Any]]:
        """Return the samples of a case; none where it was not run, or failed."""
        there = self.scenarios.get(scenario, {"cases": {}})["cases"]
        found: list[dict[str, Any]] = there.get(case, {"samples": []})["samples"]
        return found

    def times(self, scenario: str, case: str) -> list[float]:
        """Return the seconds of each round."""
        return [sum(sample["seconds"]) for sample in self.samples(scenario, case)]

    def seconds(self, scenario: str, case: str) -> float | None:
        """Return the median time; None: there is none."""
        return median(self.times(scenario, case))

    def fastest(self, scenario: str, cases: Iterable[str] | None = None) -> float | None:
        """Return the shortest median of some cases; None for `cases`: of all peers."""
        names = self.peers(scenario) if cases is None else cases
        known = [seconds for name in names if (seconds := self.seconds(scenario, name)) is not None]
        return min(known, default=None)

    def peers(self, scenario: str) -> list[str]:
        """Return the names of the peers that were measured."""
        cases = self.scenarios.get(scenario, {"cases": {}})["cases"]
        return [name for name, case in cases.items() if case["role"] == "peer"]

    def value(self, scenario: str, case: str, key: str) -> float | None:
        """Return the median of a counter of a sample, or of one of its figures."""
        samples = self.samples(scenario, case)
        return median([float(s["figures"][key] if key in s["figures"] else s[key]) for s in samples])

    def counted(self, scenario: str, case: str, key: str) -> float | None:
        """Return what the untimed pass counted: ``fsyncs``, or ``private_bytes`` of memory."""
        there = self.scenarios.get(scenario, {"cases": {}})["cases"].get(case, {})
        value = there.get("counted", {}).get(key)
        return None if value is None else float(value)

    def laps(self, scenario: str, case: str) -> list[float]:
        """Return the seconds of every lap of every round."""
        return [seconds for sample in self.samples(scenario, case) for seconds in sample["seconds"]]

    def tail(self, scenario: str, case: str) -> float | None:
        """Return the median over the rounds of p95 / p50 of the laps of one: a slower round has other laps of both."""
        rounds = [sample["seconds"] for sample in self.samples(scenario, case)]
        tails = [ratio(percentile(laps, 0.95), percentile(laps, 0.5)) for laps in rounds]
        return median([tail for tail in tails if tail is not None])


def median(values: Sequence[float]) -> float | None:
    """Return the median; None of nothing."""
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the values lie; None of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b where both are known."""
    return None if a is None or not b else a / b
