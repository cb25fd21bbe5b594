"""The processes of `racers.py`, as a test holds them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Racers:
    """Processes that live through all rounds; one that was killed is started again."""

    def __init__(self, count: int) -> None:
        self.processes = [self._start() for _ in range(count)]

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ranks" / "racers.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def say(self, number: int, **given: Any) -> None:
        process = self.processes[number]
        if process.poll() is not None:
            self._close(process)
            process = self.processes[number] = self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()

    def answer(self, number: int) -> dict[str, Any]:
        """Return what a process answers; an empty one if it died."""
        stdout = self.processes[number].stdout
        assert stdout is not None
        line = stdout.readline()
        return json.loads(line) if line else {}

    def kill(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGKILL)
        self.processes[number].wait()

    @staticmethod
    def _close(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()

    def close(self) -> None:
        for process in self.processes:
            self._close(process)
            process.send_signal(signal.SIGCONT)  # a test that failed may have left it stopped
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
