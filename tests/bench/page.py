"""Put the report and the plot into docs/performance.md, between its two markers.

``docs/performance.json`` has the samples of the last run of each scenario, so that scenarios can be run by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.plot import plot
from tests.bench.report import report
from tests.bench.results import joined

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
PLOT, SAMPLES = "performance.svg", "performance.json"


class NoPlace(Exception):
    """The page has not each marker once, in order."""


def write(page: Path, read: Mapping[str, Any]) -> dict[str, Any]:
    """Take the scenarios of a run into the samples beside the page, and make table and plot of all that are there.

    Returns:
        All that are there.

    Raises:
        NoPlace: There is no place for it; nothing was changed.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise NoPlace(f"{page} must have {BEGIN} and then {END}, each once")
    head, rest = text.split(BEGIN)
    samples = page.with_name(SAMPLES)
    read = joined(json.loads(samples.read_text(encoding="utf-8")) if samples.exists() else {}, read)
    samples.write_text(json.dumps(read, separators=(",", ":")).replace('{"role"', '\n{"role"') + "\n", encoding="utf-8")
    new = f"![Medians and spread of each case]({PLOT})\n\n{report(read)}"
    page.with_name(PLOT).write_text(plot(read), encoding="utf-8")
    page.write_text(f"{head}{BEGIN}\n\n{new}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return read
