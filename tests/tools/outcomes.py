"""A plugin of pytest: write as JSON what became of each test (``-p tests.tools.outcomes --outcomes FILE``).

Written by the process that leads the run, so that a test that took its worker with it is there as well.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest


def by_the_machine(report: pytest.TestReport) -> bool:
    """Whether a loaded machine alone explains the failure: the worker was lost, or pytest-timeout ended the test."""
    if report.when not in ("setup", "call", "teardown"):  # xdist reports a lost worker as "???"
        return True
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", "")).startswith("Failed: Timeout (>")


class Outcomes:
    """What the reports of one run said."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: defaultdict[str, list[str]] = defaultdict(list)
        self._in_earnest: set[str] = set()
        self._passed: set[str] = set()
        self._uncollected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in setup, call or teardown of a test, or that its worker died."""
        if report.failed:
            sections = "".join(f"\n--- {title} ---\n{text}" for title, text in report.sections)
            self._failed[report.nodeid].append(f"[{report.when}]\n{report.longreprtext}\n{sections}")
            if not by_the_machine(report):
                self._in_earnest.add(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take in a file that cannot be collected."""
        if report.failed:
            self._uncollected.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file."""
        outcomes: dict[str, Any] = {
            "failed": self._failed,
            "in_earnest": sorted(self._in_earnest),
            "passed": sorted(self._passed - self._failed.keys()),
            "uncollected": self._uncollected,
            "stopped": bool(session.shouldstop or session.shouldfail),
        }
        self._file.write_text(json.dumps(outcomes), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where to."""
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="write what became of each test into FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, in the process that leads it."""
    file = config.getoption("outcomes")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(file.resolve()), "outcomes-of-the-run")
