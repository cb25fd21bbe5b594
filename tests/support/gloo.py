"""Groups of processes joined by gloo, that stay while the tests of a file run: to import torch takes seconds.

Run as a program, this imports torch and the file of functions once, and forks the processes. Each calls the functions
that it is told to, one after another.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pickle  # what goes between processes of one test
import signal
import socket
import subprocess
import sys
import traceback
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
_PR_SET_PDEATHSIG = 1


class Group:
    """Processes 0 to `size` - 1 of a group; a context manager. `cases` is a file of Python with the functions.

    A rank waits at most `timeout_s` for the others. What starts it may be the warm `python`. What the ranks print goes
    to `log`.
    """

    def __init__(  # noqa: PLR0917
        self,
        size: int,
        folder: Path,
        cases: Path,
        timeout_s: int = TIMEOUT_S,
        python: str | Path = sys.executable,
        log: Path | None = None,
    ) -> None:
        name = f"ckstore-{uuid.uuid4()}"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(variable, None)
        self.size = size
        self._ranks: list[_Rank] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"\0{name}")  # a path in the folder may be longer than one may be here
        self._listening.listen(size)
        self._listening.settimeout(TIMEOUT_S)
        words = [str(folder.resolve()), str(cases), str(timeout_s), str(size), name]
        with (log or Path(os.devnull)).open("ab") as out:
            self._starter = subprocess.Popen(
                [python, "-W", "ignore", __file__, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if log is None else out,
                env=environment,
                cwd=ROOT,
            )

    def call(self, case: str, **arguments: Any) -> list[Any]:
        """Call a function on all ranks; return what each returns, or the error that it raises."""
        return self.call_each(case, [arguments] * self.size)

    def call_each(
        self, case: str, arguments: list[dict[str, Any]], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """As `call`, with arguments for each rank, and with what is done meanwhile; a dead one gives an EOFError."""
        self.ask(case, arguments)
        meanwhile()
        return [self.answer(rank) for rank in range(self.size)]

    def ask(self, case: str, arguments: list[dict[str, Any]]) -> None:
        """Call a function on all ranks; `answer` has what comes of it."""
        self._wait_for_start()
        for rank, given in zip(self._ranks, arguments, strict=True):
            rank.send((case, given))

    def answer(self, rank: int) -> Any:
        """Return what a rank returns, or the error that it raises; a dead one gives an EOFError."""
        try:
            return self._ranks[rank].receive()
        except EOFError as error:
            return error

    def _wait_for_start(self) -> None:
        if not self._ranks:
            self._ranks = sorted((_Rank(self._listening.accept()[0]) for _ in range(self.size)), key=lambda it: it.rank)

    def kill(self, rank: int) -> None:
        """Kill a rank; the group is of no use then but for the errors of the others."""
        self.signal(rank, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        self._wait_for_start()
        os.kill(self._ranks[rank].pid, number)

    def run(self, case: str, **arguments: Any) -> list[Any]:
        """As `call`; raise the first error."""
        answers = self.call(case, **arguments)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for rank in self._ranks:
            rank.close()
        try:
            self._starter.wait(TIMEOUT_S if kind is None else 0.5)
        except subprocess.TimeoutExpired:
            self._starter.kill()  # its ranks die with it
            self._starter.wait()


class _Channel:
    """One end of what a rank and the test tell each other."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reading = connected.makefile("rb")

    def send(self, value: object) -> None:
        self._socket.sendall(pickle.dumps(value))

    def receive(self) -> Any:
        """Return the next value; raise EOFError if the other end is closed."""
        try:
            return pickle.load(self._reading)
        except ConnectionResetError as error:
            raise EOFError from error

    def close(self) -> None:
        self._reading.close()
        self._socket.close()


class _Rank(_Channel):
    """What the test has of a rank."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.rank, self.pid = self.receive()


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return module


def _start(folder: str, cases: str, timeout_s: int, size: int, name: str) -> None:
    """Fork the ranks, and wait until they have ended."""
    import torch
    import torch._dynamo  # what each rank would import when it first makes a DTensor

    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    torch.set_num_threads(1)
    module = _module(cases)
    for rank in range(size):
        if os.fork() == 0:
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                connected = socket.socket(socket.AF_UNIX)
                connected.connect(f"\0{name}")
                channel = _Channel(connected)
                channel.send((rank, os.getpid()))
                _join(rank, size, f"{folder}/{name}", timeout_s)
                _work(channel, module)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(0)  # the group's threads may outlive what they use
    for _ in range(size):
        os.wait()


def _join(rank: int, size: int, meeting: str, timeout_s: int) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )


def _work(channel: _Channel, module: ModuleType) -> None:
    with suppress(EOFError):  # the test has closed its end
        while True:
            case, arguments = channel.receive()
            answer: Any
            try:
                answer = getattr(module, case)(**arguments)
            except BaseException as error:  # it is the test's to judge
                error.add_note(traceback.format_exc())  # a traceback does not go through a socket
                error.__cause__ = error.__context__ = None
                answer = error
            try:
                channel.send(answer)
            except Exception:
                channel.send(RuntimeError("".join(traceback.format_exception(answer))))


if __name__ == "__main__":
    _start(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
