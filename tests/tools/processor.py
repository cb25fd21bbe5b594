"""A plugin of pytest: tell the processor time of each test (``-p tests.tools.processor``), in the JUnit report too.

A test is charged with what its process and all that descend from it used meanwhile: wall time would charge it with
the work of other processes, and with its sleep. Servers that several tests share are charged as they are used.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.own_processes import own_processes

NAME = "processor_s"
_SHOWN = 15
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_began = pytest.StashKey[float]()
_files: defaultdict[str, float] = defaultdict(float)


def used_s() -> float:
    """Return the seconds that this process, its descendants and those of them that ended have used so far."""
    used = 0
    for pid in set(own_processes(os.getpid())) - {1}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        used += sum(map(int, fields[11:15]))  # user, system, and both of children that were waited for
    return used / _TICKS_PER_S


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Note what was used before."""
    item.stash[_began] = used_s()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Keep the difference; a child that was not waited for is lost to it."""
    try:
        return (yield)
    finally:
        item.user_properties.append((NAME, round(max(0.0, used_s() - item.stash[_began]), 2)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test to its file."""
    if report.when == "teardown":
        _files[report.nodeid.partition("::")[0]] += sum(
            float(str(s)) for name, s in report.user_properties if name == NAME
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sum, and the files that took most."""
    terminalreporter.section(f"processor time: {sum(_files.values()):.0f} s, most of it in")
    for file, seconds in sorted(_files.items(), key=lambda item: -item[1])[:_SHOWN]:
        terminalreporter.line(f"{seconds:7.1f} s  {file}")
