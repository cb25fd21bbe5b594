"""A few figures of the report for the README, between two markers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.report import number
from tests.bench.results import Results

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
README = Path(__file__).resolve().parents[2] / "README.md"

_ROWS = {
    "save": "First durable save",
    "unchanged": "Save of the same state again",
    "changing": "20 saves, each with 10 % changed",
    "load": "Load into fresh memory, from the page cache",
    "load-cold": "Load into fresh memory, from the disk",
    "into": "Load into existing tensors, from the page cache",
}
_COLUMNS = {
    "ckstore": ("ckstore",),
    "torch.save": ("torch.save",),
    "safetensors": ("safetensors",),
    "DCP": ("DCP, 1 thread", "DCP, 2 threads"),
    "restic": ("restic",),
    "plain operation": (),
}
_BASELINES = {
    "save": "direct write",
    "unchanged": "hash",
    "load": "memcpy to fresh",
    "load-cold": "direct read",
    "into": "memcpy",
}


def brief(read: Mapping[str, Any]) -> str:
    """Return the table: seconds, of each system its fastest case."""
    results = Results(read)
    rows = [f"| Seconds | {' | '.join(_COLUMNS)} |", "| --- " * (len(_COLUMNS) + 1) + "|"]
    for scenario, words in _ROWS.items():
        if scenario in results.scenarios:
            cells = [number(results.fastest(scenario, cases)) for cases in _COLUMNS.values() if cases]
            rows.append(f"| {words} | {' | '.join([*cells, _baseline(results, scenario)])} |")
    return "\n".join(rows)


def _baseline(results: Results, scenario: str) -> str:
    begins = _BASELINES.get(scenario)
    if begins is None:
        return "–"
    names = [name for name in results.scenarios[scenario]["cases"] if name.startswith(begins)]
    return f"{number(results.fastest(scenario, names))} ({begins})"


def write(readme: Path, read: Mapping[str, Any]) -> None:
    """Put the table into the README.

    Raises:
        ValueError: It has not each marker once; nothing was changed.
    """
    text = readme.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"{readme} must have {BEGIN} and then {END}, each once")
    readme.write_text(f"{head}{BEGIN}\n\n{brief(read)}\n\n{END}{tail}", encoding="utf-8")
