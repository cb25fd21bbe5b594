"""A pytest plugin: whatever a test reads through `Store`, it reads from a read-only mount of the store as well.

``-p tests.support.read_only_views``, as root in a mount namespace of its own (tests/tools/odd-environments). Before
each call of a reading method the store is bind-mounted read-only somewhere else, opened there as any user would
(``Store(path)``, for writing), and read in the same way. Both must end alike: the same value, or an error of the
same class.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckstore import Store
from ckstore.errors import CkstoreWarning, DamagedBlob, NoSuchRef
from tests.support.in_full import in_full

READING = (
    "load",
    "info",
    "latest",
    "checkpoints",
    "runs",
    "du",
    "why",
    "diff",
    "tags",
    "pins",
    "verify",
)
"""Methods of `Store` that change nothing, but for marks of damage that was found."""

COMPARED = ("info", "latest", "checkpoints", "runs", "tags", "pins")
"""Those whose values can be compared, and do not depend on what the process did before."""

ONCE = frozenset({"progress", "repair", "repair_from", "rate_bytes_s"})
"""Arguments with which a call is not only reading, or is counted by the test."""

UNLISTED = {DamagedBlob, NoSuchRef}
"""What lacks a blob is listed by the catalog alone, which SQLite may not be able to read from a read-only mount."""

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)

views_made = 0
_inside = threading.local()


def _mount(source: Path, target: Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(source))


@contextmanager
def read_only_view(path: Path) -> Iterator[Path]:
    """Mount the directory `path` read-only somewhere else for the time of a `with` block."""
    global views_made  # noqa: PLW0603
    with tempfile.TemporaryDirectory(prefix="view-") as folder:
        view = Path(folder, "store")
        view.mkdir()
        _mount(path, view, _MS_BIND | _MS_REC)
        try:
            _mount(path, view, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
            views_made += 1
            yield view
        finally:
            _libc.umount2(os.fsencode(view), _MNT_DETACH)  # what is still mapped from it lives on


def _outcome(call: Callable[[], Any]) -> tuple[Any, type[BaseException] | None]:
    try:
        return call(), None
    except Exception as error:
        return None, type(error)


def _doubled(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Store, *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "busy", False) or not ONCE.isdisjoint(kwargs) or not self.path.is_dir():
            return method(self, *args, **kwargs)
        _inside.busy = True
        try:
            with read_only_view(self.path) as view, warnings.catch_warnings():
                warnings.simplefilter("ignore", CkstoreWarning)
                value, error = _outcome(lambda: method(Store(view), *args, **kwargs))
            try:
                expected = method(self, *args, **kwargs)
            except CkstoreWarning:
                raise
            except Exception as raised:
                if error is not type(raised) and {error, type(raised)} != UNLISTED:
                    msg = f"{name} raised {type(raised).__name__}, from a read-only mount {error} (value {value!r})"
                    raise AssertionError(msg) from raised
                raise
            if error is not None or (name in COMPARED and in_full(value) != in_full(expected)):  # NaN is not NaN
                msg = f"{name} gave {expected!r}, from a read-only mount {error or value!r}"
                raise AssertionError(msg)
            return expected
        finally:
            _inside.busy = False

    # Warnings are given to the caller of ckstore, for which this is to be a part of it.
    name_of_ours = {**globals(), "__name__": "ckstore.read_only_views"}
    ours = types.FunctionType(call.__code__, name_of_ours, name, call.__defaults__, call.__closure__)
    return functools.wraps(method)(ours)


def pytest_configure() -> None:
    """Keep mounts out of other namespaces, and double the reading methods."""
    if _libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no mount namespace of our own: {os.strerror(code)}")
    for name in READING:
        setattr(Store, name, _doubled(name, getattr(Store, name)))
