"""Write the summary and the plot of ``make bench`` into docs/performance.md, between two markers.

``docs/performance.json`` has the samples of the last run of each scenario, so that scenarios can be run separately.
``python -m tests.bench report`` prints all tables of these samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.gpu_section import section
from tests.bench.plot import plot
from tests.bench.results import joined
from tests.bench.summary import summary

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
GPU_BEGIN, GPU_END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
PLOT, SAMPLES = "performance.svg", "performance.json"


class NoPlace(Exception):
    """The page has not each marker once, in order."""


def write(page: Path, read: Mapping[str, Any]) -> dict[str, Any]:
    """Add the scenarios of a run to the samples of the page, and write the summary and the plot of all samples.

    Returns:
        All samples.

    Raises:
        NoPlace: There is no place for it; nothing was changed.
    """
    between(page, BEGIN, END)
    samples = page.with_name(SAMPLES)
    read = joined(json.loads(samples.read_text(encoding="utf-8")) if samples.exists() else {}, read)
    samples.write_text(json.dumps(read, separators=(",", ":")).replace('{"role"', '\n{"role"') + "\n", encoding="utf-8")
    page.with_name(PLOT).write_text(plot(read), encoding="utf-8")
    put(page, BEGIN, END, summary(read))
    return read


def write_gpu(page: Path, found: Path) -> bool:
    """Put the section on GPUs into the page, if there is the file of a run (`tests/gpu/run.py`) that had one.

    Raises:
        NoPlace: There is no place for it; nothing was changed.
    """
    if not found.exists():
        return False
    read = json.loads(found.read_text(encoding="utf-8"))
    if read["cases"].get("about", {}).get("card") is None:
        return False  # the CPU forms say nothing about a GPU
    put(page, GPU_BEGIN, GPU_END, section(read))
    return True


def between(page: Path, begin: str, end: str) -> tuple[str, str]:
    """Return what is before and what is behind the part of a page between two markers.

    Raises:
        NoPlace: The page has not each marker once, in order.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise NoPlace(f"{page} must have {begin} and then {end}, each once")
    return text.split(begin)[0], text.split(end)[1]


def put(page: Path, begin: str, end: str, new: str) -> None:
    """Replace what is between two markers of a page."""
    head, tail = between(page, begin, end)
    page.write_text(f"{head}{begin}\n\n{new}\n\n{end}{tail}", encoding="utf-8")
