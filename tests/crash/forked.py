"""Do work in a forked child, and learn how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60.0


class Child:
    """A forked process that does `work`, from now on."""

    def __init__(self, work: Callable[[], dict[str, Any]], answer: Path) -> None:
        self._answer = answer
        answer.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                answer.write_text(json.dumps(work()))
                status = 0
            except BaseException:
                answer.write_text(json.dumps({"failed": traceback.format_exc()}))
            finally:
                os._exit(status)
        self._handle = os.pidfd_open(self.pid)

    def wait(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Wait until it has ended; False if it has not in that time."""
        ready, _, _ = select.select([self._handle], [], [], timeout_s)
        return bool(ready)

    def end(self) -> dict[str, Any]:
        """Wait and return what `work` returned, or ``{"signal": N}`` if that ended it.

        Raises:
            RuntimeError: It failed, or hung and was killed.
        """
        ready = self.wait()
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._handle)
        if ready and os.WIFSIGNALED(status):
            return {"signal": os.WTERMSIG(status)}
        said: dict[str, Any] = json.loads(self._answer.read_text()) if self._answer.exists() else {}
        if not ready or status != 0:
            why = said.get("failed", f"status {status}") if ready else "it hung"
            raise RuntimeError(f"a child failed: {why}")
        return said
