"""A saver that meets with something at one of its states: what `process.ENTRY` names in the tests.

``CKSTORE_TEST_SAVER`` says, as JSON, at which state, what happens, how often, and in which folder it says that it
happened (outside the store).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ckstore.model.saver.messages import SaverState
from ckstore.saver.server import main as server
from ckstore.saver.server.status_page import Reporter

_GO_S = 120.0


class _Struck(Reporter):
    """Strikes at the chosen state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _strike("starting")

    def at(self, number: int, state: SaverState) -> None:
        super().at(number, state)
        _strike(state)

    def publishing(self, step: int) -> None:
        super().publishing(step)
        _strike("granted")


def _strike(state: str) -> None:
    asked = json.loads(os.environ["CKSTORE_TEST_SAVER"])
    folder = Path(asked["folder"])
    if state != asked["state"]:
        return
    struck = len(list(folder.glob("struck-*")))
    if struck >= asked["times"]:
        return
    (folder / f"struck-{struck}").touch()
    what = asked["what"]
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "memory":
        raise MemoryError
    elif what == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:  # the test does something, and says when to go on
        end = time.monotonic() + _GO_S
        while not (folder / f"go-{struck}").exists() and time.monotonic() < end:
            time.sleep(0.01)


def main(fd: int) -> None:
    """As `ckstore.saver.server.main.main`."""
    vars(server)["Reporter"] = _Struck
    server.main(fd)
