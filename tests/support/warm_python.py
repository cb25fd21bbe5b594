"""A Python of another user that has imported everything already, and forks for each piece of code.

What runs in it is a process of its own, as if it had been started: it opens the store, works, and ends.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from tests.support.users import User, common_folder, users

_TIMEOUT_S = 120.0
_SERVER = """
import importlib, json, os, sys, traceback

def child(asked, out, err):
    for fd, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(fd, number)
    os.umask(asked["umask"])
    os.environ["HOME"] = asked["home"]
    os.chdir(asked["home"])
    sys.argv = ["-c", *asked["words"]]
    status = 1
    try:
        exec(compile(asked["code"], "<code>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        with open(modules, "w") as file:
            file.write(" ".join(name for name, module in sys.modules.items() if getattr(module, "__spec__", None)))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)

modules = f"/proc/self/fd/{os.memfd_create('modules')}"
for line in sys.stdin:
    out, err = os.memfd_create("out"), os.memfd_create("err")
    pid = os.fork()
    if pid == 0:
        child(json.loads(line), out, err)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(out) as file, open(err) as errors, open(modules) as names:
        for opened in (file, errors):
            opened.seek(0)
        print(json.dumps([status, file.read(), errors.read()]), flush=True)
        for name in sorted(set(names.read().split()) - sys.modules.keys()):  # the next child has them
            importlib.import_module(name)
"""


class WarmPython:
    """One such process. A context manager."""

    def __init__(self, user: User) -> None:
        self._process = user.start(sys.executable, "-c", _SERVER)

    def run(self, user: User, code: str, *words: object) -> Any:
        """Run code as `user`, who has the numbers of the one it was made for; return what it printed last, as JSON."""
        asked = {"code": code, "words": [*map(str, words)], "umask": user.umask, "home": str(user.home)}
        status, out, err = json.loads(self._answer(json.dumps(asked)))
        assert status == 0, f"uid {user.uid}: {code}\n{err}"
        return json.loads(out.splitlines()[-1]) if out.strip() else None

    def _answer(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], _TIMEOUT_S)
        answer = stdout.readline() if ready else ""
        assert answer, f"no answer within {_TIMEOUT_S:.0f} s to {line}: {self._process.communicate(timeout=_TIMEOUT_S)}"
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def warm_pythons(groups: tuple[int, ...]) -> Iterator[Callable[[User], WarmPython]]:
    """Give a function that returns the warm Python for a user, made for the first who has this uid."""
    made: dict[int, WarmPython] = {}
    with common_folder() as folder, ExitStack() as running:

        def warm(user: User) -> WarmPython:
            if not made:
                for member in users(folder, groups=groups):
                    made[member.uid] = running.enter_context(WarmPython(member))
            return made[user.uid]

        yield warm
