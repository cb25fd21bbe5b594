"""Tracebacks of errors that ckstore raises on purpose. They omit the frames inside ckstore.

The message states the problem, and the last frame is the line of the caller. Errors of other classes keep all frames,
and so does an error with a frame of other code between those of ckstore, such as a callback.
``CKSTORE_FULL_TRACEBACKS=1`` keeps all frames.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ckstore.errors import CkstoreError

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

FULL = "CKSTORE_FULL_TRACEBACKS"
_OWN = f"{Path(__file__).parent}{os.sep}"
_STANDARD = f"{Path(functools.__file__).parent}{os.sep}"


def short_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """Cut the tracebacks of the errors of a public function. Other functions that do so may be called in it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CkstoreError as error:
            shorten(error)
            # Bare: `raise error` would put the frame of `call` back (RAISE_VARARGS without an argument adds none).
            raise

    return call


def short_init(cls: type[T]) -> type[T]:
    """Shorten the tracebacks of errors of a class's constructor, which a dataclass may have generated."""
    setattr(cls, "__init__", short_tracebacks(cls.__init__))  # noqa: B010 - mypy refuses to assign to a method
    return cls


def shorten(error: CkstoreError) -> None:
    """Remove ckstore's frames from an error and from the errors in its chain, which remains."""
    if os.environ.get(FULL):
        return
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if _is_own(link.__traceback__):
            link.__traceback__ = None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def drop_frames(error: CkstoreError) -> None:
    """As `shorten`, and its causes keep their frames: those of an error of the system say where in ckstore it was."""
    if not os.environ.get(FULL) and _is_own(error.__traceback__):
        error.__traceback__ = None


def _is_own(trace: TracebackType | None) -> bool:
    """Whether all frames are ckstore's, or those of Python's library between them."""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        is_made = (file, code.co_name) == ("<string>", "__init__")  # by a dataclass of ckstore
        is_library = file.startswith(_STANDARD) and "-packages" not in file  # which lie below it
        is_standard = is_library or file.startswith("<frozen ")  # a module that is built into the interpreter
        if not (file.startswith(_OWN) or is_made or is_standard):
            return False
        trace = trace.tb_next
    return True
