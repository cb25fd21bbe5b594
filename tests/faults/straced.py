"""Read what `strace` recorded: every call with its arguments, its result, and when it began and ended.

A call of one thread may begin before one of another ends; then strace writes it in two lines. Which came first
matters: an fsync covers what had ended when it began, and promises it when it ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.requirements import require_program

_MARK = "/ckstore-trace/"
_NAMES = "openat open creat mkdir mkdirat symlink symlinkat link linkat rename renameat renameat2 unlink unlinkat rmdir"
_BYTES = "write pwrite64 writev pwritev pwritev2 copy_file_range sendfile ioctl ftruncate truncate fallocate"
_REST = "fchmod chmod fchmodat utimensat fsync fdatasync sync_file_range close dup dup2 dup3 fcntl flock"
_MARKS = "access faccessat faccessat2"
_TRACED = f"{_NAMES} {_BYTES} {_REST} {_MARKS}".split()

_LINE = re.compile(r"(?P<tid>\d+) +(?P<rest>.*)")
_WHOLE = re.compile(
    r"(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+|\?|0x[0-9a-f]+)(?: (?P<error>E[A-Z0-9]+) .*)?.*"
)
_BEGUN = re.compile(r"(?P<name>\w+)\((?P<args>.*) <unfinished \.\.\.>")
_ENDED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")
_ARGUMENT = re.compile(r'\s*("(?:[^"\\]|\\.)*"(?:\.\.\.)?|\{[^{}]*\}|\[(?:[^\[\]])*\]|[^,"{\[]+)\s*(?:,|$)')


@dataclass(frozen=True, slots=True)
class Call:
    """One system call.

    Attributes:
        arguments: As strace writes them: names for flags, strings in quotes.
        result: What it returned; -1 where it failed.
        error: The name of the error, such as ``EEXIST``; empty where it worked.
    """

    name: str
    arguments: tuple[str, ...]
    result: int
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether it returned an error."""
        return self.result < 0

    def text(self, index: int) -> str:
        """Return the string that is an argument."""
        quoted = self.arguments[index]
        if not (quoted.startswith('"') and quoted.endswith('"')):
            msg = f"argument {index} of {self} is no string"
            raise ValueError(msg)
        return quoted[1:-1].encode("latin-1").decode("unicode_escape").encode("latin-1").decode()

    def number(self, index: int) -> int:
        """Return the number that is an argument."""
        return int(self.arguments[index], 0)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)}) = {self.error or self.result}"


@dataclass(frozen=True, slots=True)
class Moment:
    """A call begins, or ends; one that no other call interrupted does both at once.

    Attributes:
        mark: What the traced program said at this moment, instead of a call.
    """

    call: Call | None
    begins: bool = True
    ends: bool = True
    mark: Any = None


def mark(**said: Any) -> None:
    """Say something in the trace of this process: a call for a path that does not exist."""
    os.access(_MARK + json.dumps(said), os.F_OK)


def record(program: Sequence[str], log: Path, environment: dict[str, str], *, timeout_s: float) -> None:
    """Run a Python program with these arguments, and all that it forks, under strace.

    Skips the test where there is no strace, and fails it in continuous integration.
    """
    strace = require_program("strace")
    traced = ",".join(f"?{name}" for name in _TRACED)
    command = [str(strace), "-f", "--seccomp-bpf", "-q", "-s", "0", "-o", str(log), "-e", f"trace={traced}"]
    command += ["-e", "inject=fsync,fdatasync:retval=0"]  # nothing is cut off here, so none has to reach the disk
    done = subprocess.run(
        [*command, sys.executable, *program],
        env=environment,
        cwd=log.parent,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        msg = f"{' '.join(program)} ended with {done.returncode} under strace:\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)


def moments(lines: Iterator[str]) -> Iterator[Moment]:
    """Return what happened, in order.

    Raises:
        ValueError: A line has no form that strace is known to write.
    """
    held = list(lines)
    finished = _calls_that_end_later(held)
    for index, line in enumerate(held):
        found = _LINE.match(line)
        rest = found["rest"] if found else line
        if rest.startswith(("+++", "---")):
            continue
        begins = bool(_BEGUN.fullmatch(rest))
        if begins and index not in finished:  # its thread died in it
            continue
        call = finished[index] if index in finished else _parse(rest)
        said = _said(call)
        if said is None:
            yield Moment(call, begins=begins or index not in finished, ends=not begins)
        elif begins or index not in finished:
            yield Moment(None, mark=said)


def _calls_that_end_later(lines: Sequence[str]) -> dict[int, Call]:
    """Return the calls that were written in two lines, by the numbers of both."""
    open_by_thread: dict[str, tuple[int, str]] = {}
    found: dict[int, Call] = {}
    for index, line in enumerate(lines):
        if not (match := _LINE.match(line)):
            continue
        if begun := _BEGUN.fullmatch(match["rest"]):
            open_by_thread[match["tid"]] = index, f"{begun['name']}({begun['args']}"
        elif ended := _ENDED.fullmatch(match["rest"]):
            if match["tid"] not in open_by_thread:  # it began before the part that is looked at
                continue
            first, text = open_by_thread.pop(match["tid"])
            found[first] = found[index] = _parse(text + ended["rest"])
    return found


def _parse(text: str) -> Call:
    match = _WHOLE.fullmatch(text)
    if match is None:
        msg = f"strace wrote a line that is not understood: {text}"
        raise ValueError(msg)
    arguments = tuple(argument.strip() for argument in _ARGUMENT.findall(match["args"]))
    result = -1 if match["result"] == "?" else int(match["result"], 0)
    return Call(match["name"], arguments, result, match["error"] or "")


def _said(call: Call) -> Any:
    if not call.name.startswith(("access", "faccessat")):
        return None
    path = call.text(0 if call.name == "access" else 1)
    return json.loads(path.removeprefix(_MARK)) if path.startswith(_MARK) else None
