"""Kill a process at a chosen call of the filesystem seam: fork, count the calls, `_exit` before or after one."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from ckstore.fs import files, links

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    Seam = Mapping[ModuleType, tuple[str, ...]]

_SEAM: Seam = {
    links: ("link", "rename", "symlink", "make_directory", "unlink", "remove_directory"),
    files: ("create_blob", "create_file", "sync_directory", "sync_open_directory"),
}
KILLED = 77


def run_and_kill(
    work: Callable[[], object], *, at: int, before: bool, seam: Seam = _SEAM, may_fail: bool = True
) -> bool:
    """Run `work` in a forked child that dies at its `at`-th change of the filesystem; return whether it died there.

    `seam` has the calls that are counted. Work that is not killed must succeed unless it `may_fail`.
    """
    return _run_forked(work, lambda: arm(at, before=before, seam=seam), may_fail=may_fail)


def run_and_kill_instead(work: Callable[[], object], module: ModuleType, name: str) -> bool:
    """Run `work` in a forked child that dies where it would call this function; return whether it came there."""
    return _run_forked(work, lambda: setattr(module, name, lambda *_, **__: os._exit(KILLED)))


def _run_forked(work: Callable[[], object], prepare: Callable[[], None], *, may_fail: bool = True) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in ((0, 1, KILLED) if may_fail else (0, KILLED)), code
    return code == KILLED


def arm(at: int, *, before: bool, seam: Seam = _SEAM) -> None:
    """Let this process die at its `at`-th change of the filesystem from now on."""
    calls = itertools.count(1)  # one step even for several threads: two of them must not skip the chosen call

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = next(calls) == at
            if mine and before:
                os._exit(KILLED)
            result = original(*args, **kwargs)
            if mine:
                os._exit(KILLED)
            return result

        return call

    for module, names in seam.items():
        for name in names:
            setattr(module, name, wrapped(getattr(module, name)))
