"""The other programs of the demo: the trainers, a reader, and the command line itself."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ckstore_cli.demo.cut import kill_in_a_save
from ckstore_cli.demo.reader import READY

DEADLINE_S = 900.0
_STOP_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Watch:
    """When a trainer is to be killed: in the first save of `run` after `after_saves` others."""

    store: Path
    run: str
    after_saves: int


def run_trainer(arguments: list[str], watch: Watch | None = None, *, program: str = "trainer") -> int | None:
    """Run the trainer, or another program of this package, until it ends or `watch` has it killed with kill -9.

    It prints where this process prints. When this returns or raises it is no longer there.

    Returns:
        Its exit status; None if it was killed.

    Raises:
        TimeoutError: It took longer than `DEADLINE_S`.
    """
    deadline_s = time.monotonic() + DEADLINE_S
    running = subprocess.Popen(
        [sys.executable, "-m", f"ckstore_cli.demo.{program}", *arguments],
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C reaches this process alone, which then ends the trainer
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # or torch starts threads that only wait
    )
    with stopped(running):
        try:
            if watch is not None and kill_in_a_save(
                running, watch.store, watch.run, after_saves=watch.after_saves, deadline_s=deadline_s
            ):
                return None
            return running.wait(max(0.0, deadline_s - time.monotonic()))
        except (subprocess.TimeoutExpired, TimeoutError):
            raise TimeoutError(f"the {program} should end within {DEADLINE_S:.0f} s") from None


@contextmanager
def stopped(program: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Give a program; after the block it is no longer there."""
    try:
        yield program
    finally:
        if program.poll() is None:
            program.kill()
            program.wait(_STOP_WITHIN_S)


@contextmanager
def reader(store: Path, ref: str) -> Iterator[int]:
    """Let another process map the checkpoint `ref`; give its process id. It has ended after the block.

    Raises:
        RuntimeError: It could not load the checkpoint.
        TimeoutError: It did not end.
    """
    program = subprocess.Popen(
        [sys.executable, "-m", "ckstore_cli.demo.reader", str(store), ref],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        said = program.stdout.readline().strip() if program.stdout is not None else ""
        if said != READY:
            raise RuntimeError(f"the reader should say {READY!r}, it said {said!r}")
        yield program.pid
    finally:
        try:
            program.communicate(timeout=_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate(timeout=_STOP_WITHIN_S)
            raise TimeoutError(f"the reader should end within {_STOP_WITHIN_S:.0f} s") from None


def ckstore_command(arguments: list[str], *, status: int = 0) -> str:
    """Run `ckstore` with `arguments`; return the command and what it printed, as on a terminal.

    Raises:
        RuntimeError: Its exit status is not `status`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "NO_COLOR": "1"},
    )
    command = f"$ ckstore {shlex.join(arguments)}"
    if done.returncode != status:
        raise RuntimeError(f"{command}: exit status {done.returncode}, wanted {status}\n{done.stdout}")
    return f"{command}\n{done.stdout.rstrip()}"
