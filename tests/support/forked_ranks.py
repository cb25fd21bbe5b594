"""Groups of ranks that may be killed, forked from one process that has imported their framework: that takes seconds.

Run as a program it imports the modules that are named, then forks the ranks of one group after another. Each rank is a
process of its own, joined to the others by gloo, and begins where the import has ended. A single
rank makes no group.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
STUCK = "stuck"
"""The status of a rank that was still there long after another had died."""


class ForkedRanks:
    """The process they are forked from. A context manager.

    Args:
        folder: An empty one, for what the ranks print, and for where they meet.
        modules: What is imported.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.forked_ranks", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
            process_group=0,  # so that ranks that never end can be killed, too
        )

    def run(self, call: str, *arguments: Any, size: int = 2) -> tuple[list[Any], str]:
        """Call a function, named ``MODULE:FUNCTION``, on all ranks of a new group.

        Returns:
            The exit status of each, negative for a signal, or `STUCK`; and what they printed.
        """
        self._count += 1
        log = self._folder / f"{self._count}.log"
        asked = {"call": call, "arguments": arguments, "size": size, "meeting": f"{log}.meeting", "log": str(log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], 2 * TIMEOUT_S)
        answer = self._process.stdout.readline() if ready else ""
        printed = log.read_text(errors="replace") if log.exists() else ""
        assert answer, f"no answer within {2 * TIMEOUT_S} s: {asked}\n{printed}"
        return json.loads(answer), printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _rank(rank: int, asked: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    torch.set_num_threads(1)
    size = asked["size"]
    if size > 1:
        _join(rank, size, asked["meeting"])
    module, _, name = asked["call"].partition(":")
    getattr(importlib.import_module(module), name)(*asked["arguments"])
    if dist.is_initialized():
        dist.barrier()


def _join(rank: int, size: int, meeting: str) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 1}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in given.items()}}
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", f"file://{meeting}", timeout, size, rank)
    dist.init_process_group = lambda *_, **__: None  # programs join the group that is there


def _child(rank: int, asked: dict[str, Any]) -> None:
    import traceback

    status = 1
    try:
        _rank(rank, asked)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the group's threads may outlive what they use


def _statuses(children: list[int]) -> list[Any]:
    """Wait for all; those that are left long after one died are killed."""
    statuses: dict[int, Any] = {}
    deadline = None
    while len(statuses) < len(children):
        left = [child for child in children if child not in statuses]
        for child in left:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                statuses[child] = os.waitstatus_to_exitcode(status)
                deadline = deadline or time.monotonic() + TIMEOUT_S
            elif deadline is not None and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[child] = STUCK
        time.sleep(0.005)
    return [statuses[child] for child in children]


def _serve(modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        children = []
        for rank in range(asked["size"]):
            child = os.fork()
            if child == 0:
                _child(rank, asked)
            children.append(child)
        print(json.dumps(_statuses(children)), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
