"""A folder with a `python` and a `ckstore` that are forks of a process which has imported what takes seconds.

Put first into PATH, or started as a program, each behaves as the real one does: it has the arguments, environment,
umask, directory and standard streams of its caller, and the caller gets its output and its status, or dies of the
signal that it died of. What is passed on are signals; who is killed by SIGKILL takes the fork with it a moment later,
so a test that looks at a store right after such a kill needs the real one.

Run as a program it is the warm process: ``python tests/support/warm_bin.py SOCKET MODULE ...``. It does not import the
package `tests`, which changes a default of ckstore: what a page runs has what users have.
"""

from __future__ import annotations

import array
import atexit
import builtins
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_SOURCE = Path(__file__).with_suffix(".c")
_NUMBER = struct.Struct("=i")
_START_TIMEOUT_S = 120
_MODULES_BYTES = 1 << 20
_LEARNED = {"accelerate", "lightning", "peft", "transformers"}


@contextmanager
def warm_bin(*modules: str) -> Iterator[Path]:
    """Yield the folder. Imported beforehand are `modules`, and of their packages and a few others what forks import."""
    # No `TemporaryDirectory`: a child that a test forks and that ends with its exit handlers would remove the folder.
    folder, owner = Path(tempfile.mkdtemp(prefix="ckstore-warm-")), os.getpid()
    process: subprocess.Popen[bytes] | None = None
    try:
        program: list[str | Path] = ["cc", "-O1", f'-DSOCKET="{folder}/socket"', "-o", folder / "python", _SOURCE]
        subprocess.run(program, check=True, timeout=_START_TIMEOUT_S)
        for other in ("python3", "ckstore"):
            (folder / other).symlink_to("python")
        words = [sys.executable, __file__, str(folder / "socket"), *modules]
        process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", f"it ended with {process.wait(_START_TIMEOUT_S)}"
        yield folder
    finally:
        if os.getpid() == owner:
            if process is not None:
                process.terminate()
                process.communicate(timeout=_START_TIMEOUT_S)
            shutil.rmtree(folder)


def _asked(connection: socket.socket) -> tuple[list[str], list[int]]:
    """Return the words that the client sent, and its three streams and its directory."""
    descriptors = array.array("i")
    head, control, *_ = connection.recvmsg(_NUMBER.size, socket.CMSG_SPACE(4 * descriptors.itemsize))
    descriptors.frombytes(control[0][2])
    with connection.makefile("rb") as file:
        text = file.read(_NUMBER.unpack(head)[0])
    return [os.fsdecode(word) for word in text.split(b"\0")[:-1]], [*descriptors]


def _become(words: list[str], descriptors: list[int]) -> None:
    """Do what the started program would."""
    for fd, number in zip(descriptors, (0, 1, 2), strict=False):
        os.dup2(fd, number)
    # New ones: those of the warm process took note of what kinds of files theirs are.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - to its end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    os.fchdir(descriptors[3])
    for fd in descriptors:
        os.close(fd)
    umask, count, *rest = words
    os.umask(int(umask))
    program, *arguments = rest[: int(count)]
    os.environ.clear()
    os.environ.update(entry.partition("=")[::2] for entry in rest[int(count) :])
    if Path(program).name == "ckstore":
        from ckstore_cli.app import main

        sys.argv = [program, *arguments]
        sys.path[0] = str(Path(sys.executable).parent)
        sys.exit(main())
    if arguments[:1] == ["-uc"]:
        arguments[:1] = ["-u", "-c"]
    while arguments[:1] in (["-u"], ["-W"]):
        if arguments[0] == "-W":  # an action, and perhaps a category, as in ignore::DeprecationWarning
            action, _, category = arguments.pop(1).partition("::")
            warnings.simplefilter(action, getattr(builtins, category or "Warning"))  # type: ignore[arg-type]
        else:
            sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
        del arguments[0]
    kind, *arguments = arguments
    if kind == "-m":
        sys.argv = [*arguments]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    code, file = (arguments.pop(0), "<string>") if kind == "-c" else (Path(kind).read_bytes(), kind)
    sys.argv = [kind, *arguments]
    sys.path[0] = "" if kind == "-c" else str(Path(kind).resolve().parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    if kind != "-c":
        module.__file__ = kind
    exec(compile(code, file, "exec"), vars(module))  # noqa: S102


def _child(words: list[str], descriptors: list[int], modules: int) -> None:
    """Be the program, to its end: also threads, and what is to be done at exit."""
    status = 1
    try:
        _become(words, descriptors)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        names = [name for name, module in [*sys.modules.items()] if getattr(module, "__spec__", None) is not None]
        os.pwrite(modules, " ".join(names).encode() + b"\n", 0)
    finally:
        os._exit(status & 0xFF)


class Server:
    """Forks, and tells each client how its fork ended."""

    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._modules = os.memfd_create("modules")

    def serve(self) -> None:
        """Do so until killed."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        words, descriptors = _asked(connection)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listening.close()
            self._selector.close()
            connection.close()
            _child(words, descriptors, self._modules)
        for fd in descriptors:
            os.close(fd)
        handle = os.pidfd_open(pid)

        def pass_on() -> None:
            numbers = b""
            with suppress(ConnectionResetError):
                numbers = connection.recv(64)
            if not numbers:  # the client was killed
                self._selector.unregister(connection)
            for number in numbers or [signal.SIGKILL]:
                signal.pidfd_send_signal(handle, number)

        def ended() -> None:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._selector.unregister(handle)
            if connection in self._selector.get_map():
                self._selector.unregister(connection)
            os.close(handle)
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(_NUMBER.pack(status))
            connection.close()
            self._learn()

        self._selector.register(connection, selectors.EVENT_READ, pass_on)
        self._selector.register(handle, selectors.EVENT_READ, ended)

    def _learn(self) -> None:
        """Import what the fork has imported, of packages that are here or take seconds: the next one has it."""
        told = os.pread(self._modules, _MODULES_BYTES, 0).partition(b"\n")[0].decode().split()
        for name in sorted(set(told) - sys.modules.keys()):
            package = name.partition(".")[0]
            if package in sys.modules or package in _LEARNED:
                with suppress(ImportError):
                    importlib.import_module(name)


def _serve(path: str, modules: list[str]) -> None:
    sys.path[0] = str(ROOT)
    for name in modules:
        importlib.import_module(name)
    sys.path[0] = ""  # the place for what a program has there
    server = Server(path)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2:])
