"""Tracebacks of errors that ckstore raises on purpose: without the frames inside ckstore, which tell a user nothing.

The error says what is wrong; of where it came from, the line of the caller counts. All frames stay in errors of any
other kind, and where a frame is not ckstore's, such as that of a callback. ``CKSTORE_FULL_TRACEBACKS=1`` keeps all.
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
E = TypeVar("E", bound=CkstoreError)

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
            raise shortened(error)  # noqa: B904 - the same error, with its own cause

    return call


def shortened(error: E) -> E:
    """Return the error without ckstore's frames, and what it is chained to; the chain itself stays."""
    if os.environ.get(FULL):
        return error
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if _is_own(link.__traceback__):
            link.__traceback__ = None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return error


def _is_own(trace: TracebackType | None) -> bool:
    """Whether all frames are ckstore's, or those of Python's library between them."""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        is_made = (file, code.co_name) == ("<string>", "__init__")  # by a dataclass of ckstore
        is_standard = file.startswith(_STANDARD) and "-packages" not in file  # which lie below it
        if not (file.startswith(_OWN) or is_made or is_standard):
            return False
        trace = trace.tb_next
    return True
