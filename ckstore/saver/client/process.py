"""Start a saver process without fork, watch it through its socket, and never wait for it without a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ckstore.errors import SaveFailed
from ckstore.fs.memory_file import open_memory
from ckstore.model.saver.messages import Message
from ckstore.saver import wire

ENTRY = "ckstore.saver.server.main"
MARK = "ckstore-saver"
_START = (
    "import json,sys; mark,entry,about,path=sys.argv[1:5]; sys.path[:]=json.loads(path); "
    "import importlib; importlib.import_module(entry).main(about)"
)
# The number of bytes that a message quotes from the end of the saver's output. A longer traceback would bury the
# message.
_LAST_LINES_BYTES = 2000
# The maximum wait for the end of a process whose socket was closed. The end usually takes some milliseconds, but a
# process that waits for a frozen disk never ends.
_DEATH_S = 1.0
# Ten times the interval between two checks. A longer pause between two checks means that the trainer itself was stopped
# (SIGSTOP, a closed laptop). The saver is then not considered stuck.
_LATE_S = 5.0

_children: list[subprocess.Popen[bytes]] = []
"""Children that have not ended. A child in a system call on a frozen disk ends when that call returns."""
_children_mutex = threading.Lock()


class SaverProcess:
    """One saver, which lives until its socket is closed and its orders are finished."""

    def __init__(self) -> None:
        # Without this call, ended savers would remain zombies until the trainer ends.
        reap()
        self._failure = ""
        self._said = -1
        self._sock, saver_end = wire.pair()
        try:
            self._said = open_memory("ckstore-saver-stderr")
            fd = saver_end.fileno()
            self._child = start(ENTRY, str(fd), self._said, pass_fds=[fd])
        except BaseException:
            self.let_go()
            raise
        finally:
            saver_end.close()
        self.pid = self._child.pid

    def send(self, message: Message | bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send a message without waiting. Return False if the socket accepts no more."""
        # If sending fails, the saver is killed. `receive` then reports the end of the saver, and `why` the reason.
        try:
            # The call does not wait, because a saver that does not read must never block the trainer.
            return wire.send(self._sock, message, descriptors, wait=False)
        except ConnectionError:
            # The order counts as sent. The watching thread notices the end of the saver, and sends the order to another
            # saver.
            return True
        except OSError as error:
            self._failure = f" because sending its orders failed: {error}"
            self.kill()
            return True

    def receive(self, timeout_s: float) -> tuple[Message | None] | None:
        """Return the next message.

        Return None if none arrives in time, and ``(None,)`` if the saver has ended or this side was closed.
        """
        try:
            got = wire.receive(self._sock, timeout_s)
        # ValueError: another thread has closed this side, so the descriptor of the socket is -1.
        except (OSError, ValueError):
            return (None,)
        if got is None:
            return None
        message, descriptors = got
        for descriptor in descriptors:
            # A saver sends no descriptors. A descriptor that arrives anyway must not remain open.
            os.close(descriptor)
        return (message,)

    def kill(self) -> None:
        """Kill the process, even if it is stopped. If it waits for a frozen disk, it ends when the disk responds."""
        self._child.kill()

    def let_go(self) -> None:
        """Close this side, so that the saver finishes its orders and exits."""
        self._sock.close()
        said, self._said = self._said, -1
        if said >= 0:
            os.close(said)

    def ended(self, timeout_s: float = _DEATH_S) -> bool:
        """Whether the process has ended, or ends within `timeout_s`."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        reap()
        return True

    def why(self) -> str:
        """Return how the process has ended, with the last lines of its output."""
        status = self._child.returncode if self.ended() else None
        if status is None:
            how = "closed its socket and has not ended"
        elif status < 0:
            names = {one.value: one.name for one in signal.Signals}
            how = f"was killed by signal {-status} ({names.get(-status, 'a real-time signal')})"
        else:
            how = f"exited with status {status}"
        said = ""
        if self._said >= 0:
            size = os.fstat(self._said).st_size
            data = os.pread(self._said, _LAST_LINES_BYTES, max(0, size - _LAST_LINES_BYTES))
            said = " / ".join(data.decode("utf-8", "replace").strip().splitlines()[-3:])
        return f"the saver process {self.pid} {how}{self._failure}" + (f"; its last output: {said}" if said else "")


def reap() -> int:
    """Forget the children that have ended, and return the number of children that have not."""
    return len(children())


def children() -> list[int]:
    """Return the ids of children that have not ended, and forget the others."""
    with _children_mutex:
        _children[:] = [child for child in _children if child.poll() is None]
        return [child.pid for child in _children]


def start(entry: str, about: str, said: int, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start Python with ``entry.main(about)``, in a new session. `said` receives its output."""
    if not sys.executable:
        msg = "sys.executable is empty: there is no Python to start a saver with"
        raise SaveFailed(msg, hint="use save() in an embedded interpreter")
    # Use the optimization flags of the trainer. With other flags, its compiled modules could not be used.
    flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is the working directory, as for imports
    # The process is isolated (-I) and uses only the trainer's `sys.path`. Otherwise PYTHONPATH, or a json.py in the
    # working directory, could replace the modules that the saver imports.
    command = [sys.executable, *flags, "-I", "-c", _START, MARK, entry, about, json.dumps(path)]
    child = subprocess.Popen(  # noqa: S603 - the interpreter itself
        command,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=pass_fds,
        cwd="/",  # so that the process does not prevent the unmounting of another filesystem
        start_new_session=True,  # only the trainer gets Ctrl-C and a hang-up of the terminal
    )
    with _children_mutex:
        _children.append(child)
    return child


def _forget_in_child() -> None:
    """Forget all savers in a forked child, without the lock.

    Waiting for the savers of the parent would fail. A thread that does not exist in the child may hold the lock.
    """
    global _children_mutex  # noqa: PLW0603
    _children_mutex = threading.Lock()
    for child in _children:
        # Otherwise, the destructor of Popen would wait for the process, which is a child of the parent, and warn.
        child.returncode = 0
    _children.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class StallWatch:
    """Measures how long a process has done nothing although it had work."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._seen: object = None
        self._moved_at = self._looked_at = time.monotonic()

    def idle_s(self, said: object, *, is_busy: bool) -> float:
        """Return for how many seconds neither `said` nor the processor time of the process have changed."""
        now = time.monotonic()
        seen = (said, self._ticks())
        # If this process itself was stopped for a while, it could not receive messages from the saver in that time.
        if seen != self._seen or not is_busy or now - self._looked_at > _LATE_S:
            self._seen = seen
            self._moved_at = now
        self._looked_at = now
        return now - self._moved_at

    def _ticks(self) -> tuple[bytes, ...]:
        """Return the processor time of the process, or nothing if the system does not report it."""
        try:
            # The fields are counted from the last parenthesis, because the name of a process may be "a) b".
            fields = self._stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            return ()
        # These are utime and stime. A saver that hashes 100 GB may send nothing for a while, but it uses the processor.
        return tuple(fields[11:13])
