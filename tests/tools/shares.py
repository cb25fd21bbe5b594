"""Write which share of the processor time of `make test` each room takes into the table of CONTRIBUTING.md.

Usage: python -m tests.tools.shares REPORT PAGE

REPORT is the JUnit report of a run of pytest with `tests.tools.processor`, such as build/tests.xml, which `make test`
writes. Of PAGE only what stands between the two markers is replaced. Shares, not seconds: those of another machine
differ, these hardly do.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.tools.processor import NAME

BEGIN, END = "<!-- shares: begin -->", "<!-- shares: end -->"


def table(report: Path) -> str:
    """Return the table in Markdown, the largest share first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest's own
        room = "/".join(takewhile(lambda name: not name.startswith("test_"), case.attrib["classname"].split(".")))
        seconds[room] += sum(float(a.attrib["value"]) for a in case.iter("property") if a.attrib["name"] == NAME)
        tests[room] += 1
    whole = sum(seconds.values())
    largest = sorted(seconds, key=lambda room: -seconds[room])
    rows = [f"| `{room}` | {tests[room]:,} | {seconds[room] / whole:.1%} |" for room in largest]
    return "\n".join(["| Room | Tests | Share |", "| --- | --- | --- |", *rows])


def main(report: Path, page: Path) -> None:
    """Write the table."""
    head, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    page.write_text(f"{head}{BEGIN}\n\n{table(report)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
