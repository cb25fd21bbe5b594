"""The summary in docs/performance.md: one row for each act, and the goals that were missed.

``python -m tests.bench report`` prints the whole report of the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.lines import LINES
from tests.bench.report import number
from tests.bench.results import Results

_NONE = "–"
_MIB = 2**20
_BASELINES = {
    "save": "direct write",
    "unchanged": "hash",
    "load": "memcpy to fresh",
    "load-again": "memcpy to fresh",
    "load-cold": "direct read",
    "into": "memcpy",
    "verify": "direct read",
}
"""Scenario -> how the names of the baselines begin whose fastest is shown."""
_ACTS = {
    "save": "first save",
    "steady": "nine saves, all changed",
    "unchanged": "save, unchanged",
    "changing": "20 saves, 10 % changed",
    "small": "50,000 small tensors",
    "small-state": "100 saves of 3 MB",
    "load": "load, warm",
    "load-again": "load after a load",
    "load-cold": "load, cold",
    "into": "load in place, warm",
    "map": "mapped load, warm",
    "one": "one tensor, cold",
    "rotate": "60 saves, keep last 3",
    "verify": "verify, cold",
}
"""Scenario -> its row."""


def summary(read: Mapping[str, Any]) -> str:
    """Return the machines, the table and the missed goals of all runs."""
    results = Results(read)
    rows = [
        "| Act (`scenario`) | ckstore, s | Baseline, s | Fastest peer, s |",
        "|---|---|---|---|",
        *(_row(results, name, act) for name, act in _ACTS.items() if results.samples(name, "ckstore")),
    ]
    parts = [_machines(results), "\n".join(rows), _memory(results), _goals(results)]
    return "\n\n".join(part for part in parts if part)


def _machines(results: Results) -> str:
    """Return dates, machines and versions of all runs; of what differs between runs, each value once."""
    found: dict[str, set[str]] = {}
    for name in results.scenarios:
        run = results.run(name)
        machine = run["machine"]
        for key, value in (
            ("date", run["date"]),
            ("cpu", machine["cpu"]),
            ("cores", f"{machine['cores']} cores"),
            ("memory", f"{machine['memory_bytes'] / 2**30:.0f} GiB"),
            ("kernel", f"Linux {machine['kernel']}"),
            ("place", run["place"].partition(" with ")[0]),
            ("python", f"Python {machine['python']}"),
            ("torch", f"torch {run['versions'].get('torch', '?')}"),
        ):
            found.setdefault(key, set()).add(value)
    dates = found.pop("date")
    words = ", ".join(" or ".join(sorted(values)) for values in found.values())
    return f"{' to '.join(sorted({min(dates), max(dates)}))}: {words}."


def _row(results: Results, name: str, act: str) -> str:
    cases = results.scenarios[name]["cases"]
    begins = _BASELINES.get(name)
    baselines = [case for case in cases if begins is not None and case.startswith(begins)]
    cells = [
        f"{act} (`{name}`)",
        number(results.seconds(name, "ckstore")),
        _fastest(results, name, baselines),
        _fastest(results, name, [case for case in results.peers(name) if "every byte" not in case]),
    ]
    return f"| {' | '.join(cells)} |"


def _memory(results: Results) -> str:
    """Return the most additional memory that a save needs."""
    counted = [results.counted(name, "ckstore", "private_bytes") for name in _ACTS if "load" not in _ACTS[name]]
    known = [nbytes for nbytes in counted if nbytes is not None]
    return f"These saves needed at most {max(known) / _MIB:,.0f} MiB of additional memory." if known else ""


def _fastest(results: Results, scenario: str, cases: list[str]) -> str:
    """Return the shortest median of some cases with the name of the case."""
    known = {case: seconds for case in cases if (seconds := results.seconds(scenario, case)) is not None}
    if not known:
        return _NONE
    best = min(known, key=known.__getitem__)
    return f"{number(known[best])} {best.partition(',')[0].partition(' to ')[0]}"


def _goals(results: Results) -> str:
    measured = [line for line in LINES if line.figure(results) is not None]
    missed = [line for line in measured if not line.reached(results)]
    rows = [
        f"- {line.what}: {number(line.figure(results))} ({'≥' if line.at_least else '≤'} {line.limit:g})"
        for line in missed
    ]
    head = f"{len(measured) - len(missed)} of {len(measured)} goals were reached."
    return "\n".join([f"{head} Missed (goal):", "", *rows]) if rows else head
