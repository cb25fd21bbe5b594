"""Groups of processes joined by gloo, that stay while the tests of a file run: to import torch takes seconds.

Run as a program, this imports torch and the file of functions once, and forks the processes. Each calls the functions
that it is told to, one after another.
"""

from __future__ import annotations

import importlib.util
import os
import pickle  # what goes over pipes between processes of one test
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


class Group:
    """Processes 0 to `size` - 1 of a group; a context manager. `cases` is a file of Python with the functions.

    A rank waits at most `timeout_s` for the others.
    """

    def __init__(self, size: int, folder: Path, cases: Path, timeout_s: int = TIMEOUT_S) -> None:
        meeting = folder.resolve() / f"meeting-{size}"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        self.size = size
        self._pids: list[int] = []
        asked, told = ([os.pipe() for _ in range(size)] for _ in range(2))
        theirs = [descriptor for (read, _), (_, write) in zip(asked, told, strict=True) for descriptor in (read, write)]
        self._starter = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", __file__),
                *(str(meeting), str(cases), str(timeout_s), *map(str, theirs)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=theirs,
            process_group=0,  # so that all of them can be killed
            env=environment,
            cwd=ROOT,
        )
        for descriptor in theirs:
            os.close(descriptor)
        self._asked: list[IO[bytes]] = [os.fdopen(write, "wb") for _, write in asked]
        self._told: list[IO[bytes]] = [os.fdopen(read, "rb") for read, _ in told]

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
        for pipe, given in zip(self._asked, arguments, strict=True):
            pickle.dump((case, given), pipe)
            pipe.flush()

    def answer(self, rank: int) -> Any:
        """Return what a rank returns, or the error that it raises; a dead one gives an EOFError."""
        try:
            return pickle.load(self._told[rank])
        except EOFError as error:
            return error

    def _wait_for_start(self) -> None:
        if not self._pids:
            self._pids = [pickle.load(told) for told in self._told]

    def kill(self, rank: int) -> None:
        """Kill a rank; the group is of no use then but for the errors of the others."""
        self.signal(rank, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        self._wait_for_start()
        os.kill(self._pids[rank], number)

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
        for pipe in self._asked:
            with suppress(BrokenPipeError):  # what was not sent to one that is dead
                pipe.close()
        try:
            self._starter.wait(TIMEOUT_S if kind is None else 0.5)
        except subprocess.TimeoutExpired:
            os.killpg(self._starter.pid, signal.SIGKILL)
            self._starter.wait()
        for told in self._told:
            told.close()


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return module


def _start(meeting: str, cases: str, timeout_s: int, descriptors: list[int]) -> None:
    """Fork the ranks, and wait until they have ended. `descriptors`: what each reads from and writes to."""
    import torch

    torch.set_num_threads(1)
    module = _module(cases)
    size = len(descriptors) // 2
    for rank in range(size):
        if os.fork() == 0:
            mine = descriptors[2 * rank : 2 * rank + 2]
            for descriptor in descriptors:
                if descriptor not in mine:  # else the end of another rank would not be seen
                    os.close(descriptor)
            try:
                _work(partial(_join, rank, size, meeting, timeout_s), module, *mine)
            except BaseException:
                traceback.print_exc()
            os._exit(0)  # the group's threads may outlive what they use
    for descriptor in descriptors:
        os.close(descriptor)
    for _ in range(size):
        os.wait()


def _join(rank: int, size: int, meeting: str, timeout_s: int) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )


def _work(join: Callable[[], None], module: ModuleType, asked: int, told: int) -> None:
    for descriptor in (asked, told):
        os.set_inheritable(descriptor, False)
    out = os.fdopen(told, "wb")
    pickle.dump(os.getpid(), out)
    out.flush()
    join()
    questions = os.fdopen(asked, "rb")
    while True:
        try:
            case, arguments = pickle.load(questions)
        except EOFError:
            break
        answer: Any
        try:
            answer = getattr(module, case)(**arguments)
        except BaseException as error:  # it is the test's to judge
            error.add_note(traceback.format_exc())  # a traceback does not go through a pipe
            error.__cause__ = error.__context__ = None
            answer = error
        try:
            data = pickle.dumps(answer)
        except Exception:
            data = pickle.dumps(RuntimeError("".join(traceback.format_exception(answer))))
        out.write(data)
        out.flush()


if __name__ == "__main__":
    _start(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(one) for one in sys.argv[4:]])
