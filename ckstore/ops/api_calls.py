"""Wrap the public methods: convert their errors, and let a thread make only one call of a store at a time.

A signal handler, a ``__del__`` or a callback can call a store while its thread is inside another call of the same
store. The new call would wait for locks that its own thread holds, so it is refused at once, before it takes a lock.
Calls in other threads are not refused: they wait for each other, as calls in other processes do.
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

from ckstore.errors import BadInput, CkstoreError, InsufficientSpace, InUse, UnsafePlace
from ckstore.fs import files
from ckstore.fs.dirfd_stat import NotInStore
from ckstore.interpreter import GC_PAUSED_MOST_S, python_gc_paused
from ckstore.model.document import shown
from ckstore.model.names import DEFAULT_RUN

P = ParamSpec("P")
R = TypeVar("R")

_HINT = "in a signal handler only set a flag; when it is set, call save from the training loop"


class _Act:
    """A running call of a public method; two calls are never equal."""

    __slots__ = ("args", "kwargs", "method", "places", "thread")

    def __init__(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method, self.args, self.kwargs = method, args, kwargs
        self.thread = get_ident()
        self.places: tuple[object, ...] = ()

    def __str__(self) -> str:
        # The name is computed only for an error: every call creates an `_Act`, and a small save takes milliseconds.
        import inspect  # rarely needed, and slow to import

        act_name = _name(self.method)
        given = inspect.signature(self.method).bind(*self.args, **self.kwargs)
        given.apply_defaults()
        run, step, ref = (given.arguments.get(name) for name in ("run", "step", "ref"))
        if act_name in ("save", "commit", "save async"):
            run = run or getattr(self.args[0], "run", None) or DEFAULT_RUN
            return f"a {act_name} of {run}@{'next step' if step is None else step}"
        return act_name + (f" of {ref}" if isinstance(ref, str | int) else "")


_under_way: dict[_Act, None] = {}
"""The calls that are running. Each is added and removed by one call of C code, which no signal handler interrupts."""


def _forget_in_child() -> None:
    for act in tuple(_under_way):
        # The call of this thread continues in the child, since a fork during a save returns into that save. The other
        # threads do not exist in the child.
        if act.thread != get_ident():
            _under_way.pop(act, None)


os.register_at_fork(after_in_child=_forget_in_child)


def api_call(method: Callable[P, R]) -> Callable[P, R]:
    """Treat a public function as a call of the store in its first argument, and convert its errors to those of ckstore.

    The first argument is a path, or has `_act_places()`, which returns the keys that two calls must not share.

    The function raises:
        InUse: This thread is inside another call of the same store.
        StoreNotFound: Another store is now at the path of the open store.
        UnsafePlace: A directory of the store was replaced by another file.
        CkstoreError: The system refused a request, there is not enough memory, or the interpreter is exiting.
    """
    return _as_act(method, _places)


def api_call_in_memory(method: Callable[P, R]) -> Callable[P, R]:
    """Do the same as `api_call` for a method of a store, but compare only paths and make no system call."""
    return _as_act(method, lambda first: (first.path,))


def of_state(method: Callable[P, R]) -> Callable[P, R]:
    """Pause Python's collector during a function that handles a whole state, which is many small objects."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # The pause includes the return of the function, which frees these objects. Otherwise the collector would walk
        # them just before they are freed.
        with python_gc_paused(most_s=GC_PAUSED_MOST_S):
            return method(*args, **kwargs)

    return call


def _as_act(method: Callable[P, R], places: Callable[[Any], tuple[object, ...]]) -> Callable[P, R]:
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Create the object before `try`, so that the `finally` block can remove it even if a signal handler raises.
        own_act = _Act(method, args, kwargs)
        try:
            _begin(own_act, places)
            return method(*args, **kwargs)
        # `NotInStore` is caught before its base class `OSError`, since a symlink in place of a directory is an attack
        # or an accident, and not an I/O error.
        except NotInStore as error:
            raise unsafe(_failed(method), error) from error
        except CkstoreError:  # one of these classes is also an `OSError`
            raise
        except OSError as error:
            msg = f"{_failed(method)}: {describe_os_error(error)}"
            hint = "the operating system reported the cause above. Nothing in the store is lost"
            if isinstance(error, PermissionError):
                hint = "it belongs to another user, or its permissions were changed. Nothing in the store is lost"
            raise of_the_system(error, msg, hint=hint) from error
        # The arguments are checked only after Python has refused the call, so that correct calls are not slower.
        except TypeError as error:
            if msg := unknown_argument(method, kwargs):
                raise TypeError(msg) from error
            raise
        except MemoryError as error:
            msg = f"{_failed(method)}: not enough memory{f': {error}' if str(error) else ''}"
            raise CkstoreError(msg, hint="nothing in the store is lost") from error
        finally:
            # This is one call of C code, so no signal handler can raise before the call is removed. Otherwise, later
            # calls of this thread would always be refused.
            _under_way.pop(own_act, None)

    return call


def places_of(root: Path) -> tuple[object, ...]:
    """Return the identity of the store at a path: the path, and its device and inode."""
    try:
        status = os.stat(root)
    except OSError:  # the store does not exist yet, or the call will report the error
        return (root,)
    # Use both. The path stays the same if the store is replaced, and the inode if another path leads to the store.
    return root, (status.st_dev, status.st_ino)


def _places(first: Any) -> tuple[object, ...]:
    own: tuple[object, ...] = places_of(first) if isinstance(first, Path) else first._act_places()  # noqa: SLF001 - see `api_call`
    return own


def _begin(own_act: _Act, places: Callable[[Any], tuple[object, ...]]) -> None:
    # While the interpreter removes its threads and locks, a call would hang or fail midway.
    if sys.is_finalizing():
        msg = f"{_failed(own_act.method)}: the interpreter is shutting down"
        raise CkstoreError(msg, hint="use the store in an atexit handler at the latest")
    progress = own_act.kwargs.get("progress")
    if progress is not None and not callable(progress):
        msg = f"progress must be a function of the bytes done and the total, or None, got {shown(progress)}"
        raise BadInput(msg, hint="progress=lambda done, total: print(done, total)")
    own_act.places = places(own_act.args[0])
    # Iterate over a copy, since other threads add and remove calls.
    for other in tuple(_under_way):
        if other.thread == own_act.thread and not set(own_act.places).isdisjoint(other.places):
            msg = f"{_failed(own_act.method)}: {other} is running in this same thread"
            raise InUse(msg, hint=_HINT)
    _under_way[own_act] = None


def _name(method: Callable[..., Any]) -> str:
    name = method.__name__.strip("_").replace("_", " ")
    if method.__qualname__.startswith("StoreConfig."):
        return f"config.{method.__name__}"
    return {"open": "opening the store", "create": "creating the store", "getitem": "reading a tensor"}.get(name, name)


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
"""Names of arguments in torch and in trainers -> the equivalent argument of ckstore."""
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
"""Names of arguments in torch without an equivalent in ckstore -> why they are not needed."""


def unknown_argument(method: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return the message for the first given argument that a method does not have, or "" if it has all of them."""
    import inspect

    parameters = inspect.signature(method).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return ""
    word = next((name for name in given if name not in parameters), None)
    return "" if word is None else message_for(method, word)


def message_for(method: Callable[..., Any], word: str, options: Iterable[str] = ()) -> str:
    """Return the message for an argument that is neither in the signature of a method nor among its options."""
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
    """Refuse unknown options, as Python does for arguments; `allowed` is a `TypedDict` of the options."""
    for word in options.keys() - allowed.__annotations__.keys():
        raise TypeError(message_for(method, word, allowed.__annotations__))


def describe_os_error(error: OSError) -> str:
    """Return the message of a system error and its file."""
    if isinstance(error, NotInStore):
        return f"{error.filename} {error.strerror}, wanted a directory of the store"
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, (str, bytes)) else ""
    if error.errno == errno.EXDEV:
        from ckstore.fs.host.crossing import cause_of  # rarely needed

        paths = (error.filename, error.filename2)
        cause = cause_of(path for path in paths if isinstance(path, (str, bytes)))
        where += f": {cause}" if cause else ""
    if error.errno == errno.EFBIG:
        where += ": the limit of this process (ulimit -f) or of the filesystem is smaller"
    return f"{reason}{where}"


def describe_error(error: OSError | CkstoreError) -> str:
    """Return the description of an error for a list of several errors."""
    return describe_os_error(error) if isinstance(error, OSError) else str(error)


def of_the_system(error: OSError, message: str, *, hint: str) -> CkstoreError:
    """Return the error of ckstore for a system error: `InsufficientSpace` for a full disk or quota."""
    if error.errno not in files.NO_SPACE:
        return CkstoreError(message, hint=hint)
    return InsufficientSpace(message, hint=f"free space on the filesystem, or raise the quota; {hint}")


def why_of(error: CkstoreError | OSError) -> str:
    """Return the message of an error of the store or the system."""
    return error.message if isinstance(error, CkstoreError) else describe_os_error(error)


def unsafe(act_name: str, error: NotInStore) -> UnsafePlace:
    """Return the error for a call that found another file in place of a directory of the store."""
    hint = "nothing in it was changed: find out who created it, and move it away"
    return UnsafePlace(f"{act_name}: {describe_os_error(error)}", hint=hint)
