"""Acts: the calls of the public methods, and what their errors say; in one thread one act of a store at a time.

A signal handler, a ``__del__`` or a callback can call a store while its own thread is in the middle of another act of
it. The locks that the new act would wait for are held by the thread that waits, so it is refused at once, before it
takes any. Acts of other threads are waited for as those of other processes.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ckstore.errors import CkstoreError, InsufficientSpace, InUse, UnsafePlace
from ckstore.fs import files
from ckstore.fs.store_path import NotInStore
from ckstore.model.names import DEFAULT_RUN
from ckstore.tracebacks import drop_frames, shorten

P = ParamSpec("P")
R = TypeVar("R")

_HINT = "in a signal handler only set a flag; when it is set, call save from the training loop"


class _Act:
    """A call of a public method; its identity is the object's."""

    __slots__ = ("args", "kwargs", "method", "places", "thread")

    def __init__(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method, self.args, self.kwargs = method, args, kwargs
        self.thread = get_ident()
        self.places: tuple[object, ...] = ()

    def __str__(self) -> str:
        # Only for an error: every act makes an `_Act`, and a save of 8 KB takes some milliseconds in all.
        import inspect  # seldom needed, and slow to import

        act_name = _name(self.method)
        given = inspect.signature(self.method).bind(*self.args, **self.kwargs)
        given.apply_defaults()
        run, step, ref = (given.arguments.get(name) for name in ("run", "step", "ref"))
        if act_name in ("save", "commit", "save async"):
            run = run or getattr(self.args[0], "run", None) or DEFAULT_RUN
            return f"a {act_name} of {run}@{'next step' if step is None else step}"
        return act_name + (f" of {ref}" if isinstance(ref, str | int) else "")


_under_way: dict[_Act, None] = {}
"""Entered and left by single calls of C code, between which no signal handler runs."""


def _forget_in_child() -> None:
    for act in tuple(_under_way):
        # Its own act goes on in the child: a fork in the middle of a save returns into that save.
        if act.thread != get_ident():  # of a thread that the child does not have
            _under_way.pop(act, None)


os.register_at_fork(after_in_child=_forget_in_child)


def api_call(method: Callable[P, R]) -> Callable[P, R]:
    """Make a public function one act of its first argument, and all its errors ckstore's.

    That argument is a path, or has `_act_places()`, which gives what two acts must not have in common.

    The function raises:
        InUse: This thread is in another act of the same store.
        UnsafePlace: Something else has the place of a directory of the store.
        CkstoreError: The system refused something, there is not enough memory, or the interpreter is ending.
    """
    return _as_act(method, _places)


def api_call_in_memory(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method of a store an act that asks the filesystem nothing: stores are told apart by their paths alone."""
    return _as_act(method, lambda first: (first.path,))


def _as_act(method: Callable[P, R], places: Callable[[Any], tuple[object, ...]]) -> Callable[P, R]:
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Made before `try`: the `finally` below must know what to take out whatever a signal handler raises.
        own_act = _Act(method, args, kwargs)
        try:
            try:
                _begin(own_act, places)
                return method(*args, **kwargs)
            # Before `OSError`, of which it is one: a symlink in the place of a directory is an attack or an accident,
            # no I/O error.
            except NotInStore as error:
                raise unsafe(_failed(method), error) from error
            except CkstoreError as error:  # first: one of them is an OSError, too
                shorten(error)
                raise
            except OSError as error:
                msg = f"{_failed(method)}: {describe_os_error(error)}"
                hint = "the operating system reported the cause above; nothing in the store is lost"
                if isinstance(error, PermissionError):
                    hint = "it belongs to another user, or its permissions were changed; nothing in the store is lost"
                raise of_the_system(error, msg, hint=hint) from error
            # Asked only after Python refused the call: checking each call's words first would cost every act.
            except TypeError as error:
                if msg := unknown_argument(method, kwargs):
                    raise TypeError(msg) from error
                raise
            except MemoryError as error:
                msg = f"{_failed(method)}: not enough memory{f': {error}' if str(error) else ''}"
                raise CkstoreError(msg, hint="nothing in the store is lost") from error
        except CkstoreError as error:
            drop_frames(error)  # that of `call`, in which an error of the system was translated
            raise  # bare, as in `short_tracebacks`
        finally:
            # One call of C code, as the entry: a handler that raises in between would leave the thread refused for
            # ever.
            _under_way.pop(own_act, None)

    return call


def places_of(root: Path) -> tuple[object, ...]:
    """Return the identity of the store at a path: the path, and the device and inode behind it."""
    try:
        status = os.stat(root)
    except OSError:  # there is none yet, or the act says what is wrong with it
        return (root,)
    # Both: the path stays the same when a store is replaced, the inode when it is reached by another path or a symlink.
    return root, (status.st_dev, status.st_ino)


def _places(first: Any) -> tuple[object, ...]:
    own: tuple[object, ...] = places_of(first) if isinstance(first, Path) else first._act_places()  # noqa: SLF001 - see `act`
    return own


def _begin(own_act: _Act, places: Callable[[Any], tuple[object, ...]]) -> None:
    # Threads and locks of the interpreter are being taken down: an act would hang or fail in the middle.
    if sys.is_finalizing():
        msg = f"{_failed(own_act.method)}: the interpreter is shutting down"
        raise CkstoreError(msg, hint="an atexit handler is the last place from which a store can be used")
    own_act.places = places(own_act.args[0])
    # A copy: acts of other threads come and go while this one looks.
    for other in tuple(_under_way):
        if other.thread == own_act.thread and not set(own_act.places).isdisjoint(other.places):
            msg = f"{_failed(own_act.method)}: {other} is running in this same thread"
            raise InUse(msg, hint=_HINT)
    _under_way[own_act] = None


def _name(method: Callable[..., Any]) -> str:
    name = method.__name__.strip("_").replace("_", " ")
    if method.__qualname__.startswith("StoreConfig."):
        return f"config.{method.__name__}"
    return {"open": "opening the store", "create": "making the store", "getitem": "reading a tensor"}.get(name, name)


def _failed(method: Callable[..., Any]) -> str:
    return f"{_name(method)} failed"


_MEANT = {
    "map_location": "device",
    "location": "device",
    "checkpoint_id": "ref",
    "global_step": "step",
    "iteration": "step",
    "epoch": "step",
    "name": "run",
    "tag": "tags",
    "overwrite": "if_exists",
    "dtype": "cast",
}
"""Words of torch and of trainers -> the argument that is meant."""
_LEAVE_OUT = {
    "map_location": "the tensors of the target stay on their devices",
    "weights_only": "a load never executes anything",
    "pickle_module": "nothing is pickled",
    "pickle_protocol": "nothing is pickled",
    "encoding": "nothing is pickled",
    "_use_new_zipfile_serialization": "nothing is pickled",
    "allow_partial_load": "strict=False loads what fits",
    "no_dist": "without ranks= there is one process",
}
"""Words of torch that no method has -> why they are not needed."""


def unknown_argument(method: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return the message for the first argument that a method does not have; empty if it has all of them."""
    import inspect

    parameters = inspect.signature(method).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return ""
    word = next((name for name in given if name not in parameters), None)
    return "" if word is None else message_for(method, word)


def message_for(method: Callable[..., Any], word: str, options: Iterable[str] = ()) -> str:
    """Return the message for an argument that a method does not have, neither in its signature nor in its options."""
    import difflib
    import inspect

    message = f"{method.__name__}() has no argument {word!r}"
    parameters = [*inspect.signature(method).parameters, *options]
    names = [name for name in parameters if name not in {"self", "options"}]
    meant = _MEANT.get(word)
    if meant is None or meant not in parameters:
        if word in _LEAVE_OUT:
            return f"{message}: leave it out, {_LEAVE_OUT[word]}"
        meant = next(iter(difflib.get_close_matches(word, names, 1)), None)
    return f"{message}; did you mean {meant}=?" if meant else message


def check_options(method: Callable[..., Any], options: Mapping[str, Any], allowed: type) -> None:
    """Refuse what is no option, as Python does where the names stand in the signature."""
    # `allowed`: a `TypedDict`, whose annotations are the options.
    for word in options.keys() - allowed.__annotations__.keys():
        raise TypeError(message_for(method, word, allowed.__annotations__))


def describe_os_error(error: OSError) -> str:
    """Return what the system said and about which file, for a message."""
    if isinstance(error, NotInStore):
        return f"{error.filename} {error.strerror}, wanted a directory of the store"
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    if error.errno == errno.EXDEV:
        from ckstore.fs.host.crossing import cause_of  # seldom needed

        paths = (error.filename, error.filename2)
        cause = cause_of(path for path in paths if isinstance(path, (str, bytes)))
        where += f": {cause}" if cause else ""
    return f"{reason}{where}"


def describe_error(error: OSError | CkstoreError) -> str:
    """Return what went wrong, in a sentence that names one failure among others."""
    return describe_os_error(error) if isinstance(error, OSError) else str(error)


def of_the_system(error: OSError, message: str, *, hint: str) -> CkstoreError:
    """Return the error of ckstore for one of the system: of a full disk, or a quota, it is `InsufficientSpace`."""
    if error.errno not in files.NO_SPACE:
        return CkstoreError(message, hint=hint)
    return InsufficientSpace(message, hint=f"free space on the filesystem, or raise the quota; {hint}")


def why_of(error: CkstoreError | OSError) -> str:
    """Return what an error of the store or of the system says, for a message."""
    return error.message if isinstance(error, CkstoreError) else describe_os_error(error)


def unsafe(act_name: str, error: NotInStore) -> UnsafePlace:
    """Return the error of an act in whose way something was that is not a directory of the store."""
    hint = "nothing behind it was touched: find out who put it there, and move it away"
    return UnsafePlace(f"{act_name}: {describe_os_error(error)}", hint=hint)
