"""A program at a terminal of its own: type, and wait for what it shows."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

TIMEOUT_S = 120.0


class Terminal:
    """A process whose input, output and controlling terminal is a pseudoterminal of 40 lines of 100 columns."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        try:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
            self._process = subprocess.Popen(
                [  # setsid: the terminal is to become that of the program, not that of the tests
                    "setsid",
                    "--ctty",
                    *command,
                ],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=dict(env),
                cwd=cwd,
            )
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self._shown = b""

    def __enter__(self) -> Self:
        """Give the terminal."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the program."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Press these keys."""
        left = keys.encode()
        while left:
            left = left[os.write(self._ours, left) :]

    def until(self, text: str) -> str:
        """Wait until `text` was shown; return what was shown up to its end and was not given before."""
        deadline = time.monotonic() + TIMEOUT_S
        wanted = text.encode()
        while wanted not in self._shown:
            ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
            chunk = self._read() if ready else b""
            if not chunk:
                msg = f"{text!r} was not shown, but {self._shown.decode(errors='replace')!r}"
                raise AssertionError(msg)
            self._shown += chunk
        end = self._shown.index(wanted) + len(wanted)
        shown, self._shown = self._shown[:end], self._shown[end:]
        return shown.decode(errors="replace")

    def _read(self) -> bytes:
        try:
            return os.read(self._ours, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # no process has the other side open any more
                return b""
            raise
