"""The report in Markdown: a table of the lines, and one a scenario with the ratios to baselines and peers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.bench.lines import LINES
from tests.bench.results import Results, percentile, ratio

_NONE = "–"
_MIB = 2**20


def report(read: Mapping[str, Any]) -> str:
    """Return the whole report."""
    results = Results(read)
    parts = [*_about(results), _lines(results)]
    parts += [_scenario(results, name) for name in results.scenarios]
    parts.append(_not_run(results))
    return "\n\n".join(part for part in parts if part)


def _about(results: Results) -> list[str]:
    """Say of which runs the figures are: one sentence, or one for each run with its scenarios."""
    of_run: dict[str, list[str]] = {}
    for name in results.scenarios:
        of_run.setdefault(_run(results.run(name)), []).append(f"`{name}`")
    if len(of_run) == 1:
        return [f"Of a run on {run}" for run in of_run]
    return [f"{', '.join(names)}: of a run on {run}" for run, names in of_run.items()]


def _run(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    size = f"{run['sizes']['state_bytes'] / 2**30:.3g} GiB"
    larger = ", larger than memory" if run["larger_than_memory"] else ""
    return (
        f"{run['date']}: {machine['cpu']}, {machine['cores']} cores, {memory}, Linux "
        f"{machine['kernel']}, {run['place']}; state of {size}{larger}, {run['rounds']} rounds, seed "
        f"{run['sizes']['seed']}, cold by {run['cold_by']}. Python {machine['python']}, {versions}."
    )


def _lines(results: Results) -> str:
    rows = ["| Goal | Wanted | Measured | Reached |", "| --- | --- | --- | --- |"]
    for line in LINES:
        value = line.figure(results)
        if value is not None:
            wanted = f"{'at least' if line.at_least else 'at most'} {line.limit:g}"
            rows.append(
                f"| {line.what} | {wanted} | {number(value)} | {'yes' if line.reached(results) else '**no**'} |"
            )
    return "\n".join(rows) if len(rows) > 2 else ""


def _scenario(results: Results, name: str) -> str:
    scenario = results.scenarios[name]
    head = [
        "",
        "seconds",
        "min – max",
        "GB/s",
        "× ckstore",
        "CPU-s/GB",
        "extra MiB",
        "written MiB",
        "read MiB",
        "files",
    ]
    head += ["fsyncs", "also"]
    rows = [f"**{scenario['title']}** (`{name}`)", "", _row(head), _row(["---"] * len(head))]
    order = {"baseline": 0, "ckstore": 1, "peer": 2}
    cases = sorted(scenario["cases"].items(), key=lambda item: order[item[1]["role"]])
    rows += [_row(_cells(results, name, case, about["role"])) for case, about in cases if about["samples"]]
    return "\n".join(rows)


def _cells(results: Results, scenario: str, case: str, role: str) -> list[str]:
    times = results.times(scenario, case)
    seconds = results.seconds(scenario, case)
    nbytes = results.value(scenario, case, "nbytes")
    title = f"*{case}*" if role == "baseline" else f"**{case}**" if role == "ckstore" else case
    per_gb = ratio(results.value(scenario, case, "cpu_s"), None if nbytes is None else nbytes / 1e9)
    private = results.counted(scenario, case, "private_bytes")
    extra = results.value(scenario, case, "extra_bytes") if private is None else private
    # Counted in the same part of the work as the times, which are scaled up already.
    fsyncs = ratio(results.counted(scenario, case, "fsyncs"), results.value(scenario, case, "scale"))
    return [
        title,
        number(seconds),
        f"{number(min(times))} – {number(max(times))}",
        number(ratio(None if nbytes is None else nbytes / 1e9, seconds)),
        number(ratio(seconds, results.seconds(scenario, "ckstore"))),
        number(per_gb),
        _count(ratio(extra, _MIB)),
        _count(ratio(results.value(scenario, case, "written_bytes"), _MIB)),
        _count(ratio(results.value(scenario, case, "read_bytes"), _MIB)),
        _count(results.value(scenario, case, "files")),
        _count(fsyncs),
        _also(results, scenario, case),
    ]


def _also(results: Results, scenario: str, case: str) -> str:
    samples = results.samples(scenario, case)
    parts = [f"{key.replace('_', ' ')} {number(results.value(scenario, case, key))}" for key in samples[0]["figures"]]
    if samples[0]["scale"] < 1:
        parts.append(f"scaled from {samples[0]['scale']:.1%} of the work")
    if len(samples[0]["seconds"]) > 1:
        laps = results.laps(scenario, case)
        p50, p95 = percentile(laps, 0.5), percentile(laps, 0.95)
        tail = results.tail(scenario, case)
        parts.append(f"{len(laps)} laps, p50 {number(p50)} s, p95 {number(p95)} s, p95 / p50 of a round {number(tail)}")
    return "; ".join(parts)


def _not_run(results: Results) -> str:
    reasons: dict[tuple[str, str], list[str]] = {}
    for case, why in dict.fromkeys(pair for scenario in results.scenarios for pair in _lacking(results, scenario)):
        where = [name for name in results.scenarios if (case, why) in _lacking(results, name)]
        reasons.setdefault((why, ", ".join(where)), []).append(case)
    rows = [f"- {'; '.join(cases)}: {why} ({where})" for (why, where), cases in reasons.items()]
    return "\n".join(["Not run:", "", *rows]) if rows else ""


def _lacking(results: Results, name: str) -> list[tuple[str, str]]:
    """Return the cases that were not run, or failed, with the reason."""
    scenario = results.scenarios[name]
    failed = [(case, f"failed: {whys[0]}") for case, whys in scenario["errors"].items()]
    return [*scenario["skipped"].items(), *failed]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Return three digits of a number; large ones with separators."""
    if value is None:
        return _NONE
    if not math.isfinite(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _count(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"
