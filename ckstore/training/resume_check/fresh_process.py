"""Start a fresh Python process for a task of the check, wait for it with a timeout, and read its result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckstore.errors import BadInput, LoopFailed
from ckstore.model.words import printable
from ckstore.training.resume_check.task import DOING, RESULT, Task

IN_CHECK = "CKSTORE_IN_RESUME_CHECK"
"""The environment variable that is set in each process of the check."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ckstore.training.resume_check.check_process import main; main(sys.argv[1])"
)
_MARGIN_S = 10.0
"""Seconds that a process has after its timeout to print its stack and end, sufficient even on a busy machine."""
_KILLED_S = 10.0
"""Seconds to wait for a killed process, which ends immediately unless a dead disk or a debugger holds it."""
_POLL_S = 0.02
_OUTPUT_BYTES = 1 << 16
_LINES_SHOWN = 40


def run(task: Task, folder: Path, what: str) -> dict[str, Any]:
    """Run a task in a fresh process with a new folder, and return its result. `what` names the process in errors.

    Raises:
        BadInput: The check refuses the loop.
        LoopFailed: The loop raised an error, the process died, or it did not end in time.
    """
    folder.mkdir()
    task = replace(task, folder=str(folder))
    file, output = folder / "task.json", folder / "output"
    file.write_text(json.dumps(task.to_json()), encoding="utf-8")
    flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    # The new `sys.path` has the directory of the script, or the current directory, and then this process's `sys.path`.
    first = str(Path(task.factory.module).parent) if task.factory.is_file else str(Path.cwd())
    mine = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is the working directory, as for imports
    paths = [first, *(entry for entry in mine if entry != first)]
    begin_s = time.monotonic()
    with output.open("wb") as said:
        child = subprocess.Popen(  # noqa: S603 - the interpreter itself
            [sys.executable, *flags, "-c", _START, str(file), json.dumps(paths)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, IN_CHECK: "1"},
            # The data loader of the task may start workers. All processes of a group can be killed together.
            start_new_session=True,
        )
        try:
            is_late = not _ended(child.pid, task.timeout_s + _MARGIN_S)
        finally:
            status = _end(child)
    is_late = is_late or time.monotonic() - begin_s >= task.timeout_s
    if status is None or not (folder / RESULT).exists():
        raise _died(what, folder, (child.pid, status), task.timeout_s, is_late=is_late)
    result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if "refused" in result:
        raise BadInput(result["refused"]["message"], hint=result["refused"]["hint"])
    if "failure" in result:
        failure = result["failure"]
        happened = f"{failure['error']}: {failure['message']}" if failure["message"] else failure["error"]
        msg = f"{what} failed {result['doing']}: {happened}\n{failure['traceback'].rstrip()}"
        raise LoopFailed(msg, output=_last_lines(output))
    return result


def _ended(pid: int, timeout_s: float) -> bool:
    """Whether a child ends within a time. The child is not reaped, so its PID still identifies its group."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return True
        except ChildProcessError:  # the program ignores SIGCHLD, so the kernel has reaped the child
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)


def _end(child: subprocess.Popen[bytes]) -> int | None:
    """Kill the process and its children. Return its status, or None if it still runs after a wait."""
    with contextlib.suppress(ProcessLookupError):  # SIGCHLD is ignored, and all processes of the group have ended
        os.killpg(child.pid, signal.SIGKILL)
    try:
        return child.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        return None


def _died(what: str, folder: Path, of: tuple[int, int | None], timeout_s: float, *, is_late: bool) -> LoopFailed:
    """Return the error for a process that has no result or survived a kill. `of` is its PID and its exit status."""
    doing = folder / DOING
    when = doing.read_text(encoding="utf-8") if doing.exists() else "while Python was started"
    pid, status = of
    lines = _last_lines(folder / "output")
    if status is None:
        msg = f"{what} was killed {when}, and process {pid} has not ended {_KILLED_S:g} s later"
        hint, command_hint = f"it may wait for a disk or a debugger, see /proc/{pid}/status", ""
    elif is_late:
        msg = f"{what} did not end within {timeout_s:g} s; it was stopped {when}"
        hint = "the stack is below; a longer timeout_s= waits longer"
        command_hint = "the stack is below; --timeout waits longer"
    else:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        msg, hint, command_hint = f"{what} {how} {when}", "the kernel's log (dmesg) may say more", ""
    return LoopFailed(f"{msg}\n{lines}" if lines else msg, hint=hint, command_hint=command_hint, output=lines)


def _last_lines(file: Path) -> str:
    if file.stat().st_size <= _OUTPUT_BYTES:
        data = file.read_bytes()[-_OUTPUT_BYTES:]
    else:
        with file.open("rb") as opened:
            opened.seek(-_OUTPUT_BYTES, os.SEEK_END)
            data = opened.read()
    lines = data.decode("utf-8", "replace").rstrip().splitlines()[-_LINES_SHOWN:]
    return "\n".join(printable(line, keep_lines=True) for line in lines)
