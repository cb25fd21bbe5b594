"""Count the fsyncs of each case: all cases once more under strace, untimed. Memory is sampled in that pass, too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.bench.child import MARK

_CALLS = ("fsync", "fdatasync", "sync_file_range", "syncfs", "msync")
_MARKED = re.compile(rf'access\("{MARK}(begin|end)/([^"]*)"')
_CALL = re.compile(rf"^\d+ +(?:{'|'.join(_CALLS)})\(")


def strace_command(log: Path) -> list[str]:
    """Return what goes before a command to have its fsyncs logged; empty where there is no strace."""
    strace = shutil.which("strace")
    if strace is None:
        return []
    traced = ",".join(f"?{name}" for name in ("access", "faccessat", "faccessat2", *_CALLS))
    return [strace, "-f", "--seccomp-bpf", "-q", "-s", "200", "-o", str(log), "-e", f"trace={traced}"]


def fsyncs(log: Path) -> dict[tuple[str, str], int]:
    """Return how many calls that make something durable each case made on the clock, by scenario and case."""
    counts: dict[tuple[str, str], int] = {}
    now: tuple[str, str] | None = None
    for line in log.read_text(errors="replace").splitlines():
        if found := _MARKED.search(line):
            scenario, case = found[2].split("|")
            now = (scenario, case) if found[1] == "begin" else None
            counts.setdefault((scenario, case), 0)
        elif now is not None and _CALL.match(line):
            counts[now] += 1
    return counts
