"""Put the report and the plot of a run into docs/performance.md, between its two markers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.plot import plot
from tests.bench.report import report

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
PLOT = "performance.svg"


class NoPlace(Exception):
    """The page has not each marker once, in order."""


def write(page: Path, read: Mapping[str, Any]) -> None:
    """Replace what stands between the markers, and the plot beside the page.

    Raises:
        NoPlace: There is no place for it; nothing was changed.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise NoPlace(f"{page} must have {BEGIN} and then {END}, each once")
    head, rest = text.split(BEGIN)
    new = f"![Medians and spread of each case]({PLOT})\n\n{report(read)}"
    page.with_name(PLOT).write_text(plot(read), encoding="utf-8")
    page.write_text(f"{head}{BEGIN}\n\n{new}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
