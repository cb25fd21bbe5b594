"""Groups of processes joined by gloo, that stay while the tests of a file run: starting torch takes seconds.

Run as a program, this is one of the processes: it calls the functions that it is told to, one after another.
"""

from __future__ import annotations

import importlib.util
import os
import pickle  # what goes over pipes between processes of one test
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


class Group:
    """Processes 0 to `size` - 1 of a group; a context manager. `cases` is a file of Python with the functions."""

    def __init__(self, size: int, folder: Path, cases: Path) -> None:
        meeting = folder / f"meeting-{size}"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        self.size = size
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(rank), str(size), str(meeting), str(cases)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                cwd=ROOT,
            )
            for rank in range(size)
        ]

    def call(self, case: str, **arguments: Any) -> list[Any]:
        """Call a function on all ranks; return what each returns, or the error that it raises."""
        return self.call_each(case, [arguments] * self.size)

    def call_each(
        self, case: str, arguments: list[dict[str, Any]], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """As `call`, with arguments for each rank, and with what is done meanwhile; a dead one gives an EOFError."""
        for process, given in zip(self.processes, arguments, strict=True):
            assert process.stdin is not None
            pickle.dump((case, given), process.stdin)
            process.stdin.flush()
        meanwhile()
        answers: list[Any] = []
        for process in self.processes:
            assert process.stdout is not None
            try:
                answers.append(pickle.load(process.stdout))
            except EOFError as error:
                answers.append(error)
        return answers

    def kill(self, rank: int) -> None:
        """Kill a rank; the group is of no use then but for the errors of the others."""
        self.processes[rank].kill()
        self.processes[rank].wait()

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
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            assert process.stdout is not None
            try:
                process.wait(TIMEOUT_S if error is None else 0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return module


def _work(rank: int, size: int, meeting: str, cases: str) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    module = _module(cases)
    while True:
        try:
            case, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        answer: Any
        try:
            answer = getattr(module, case)(**arguments)
        except BaseException as error:  # it is the test's to judge
            error.__cause__ = error.__context__ = None
            answer = error
        try:
            data = pickle.dumps(answer)
        except Exception:
            data = pickle.dumps(RuntimeError("".join(traceback.format_exception(answer))))
        out.write(data)
        out.flush()
    os._exit(0)  # the group's threads may outlive what they use


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
