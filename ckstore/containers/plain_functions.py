"""Compute the results of Python and NumPy functions that a pickle names, without importing or calling these functions.

The functions are those that the weights-only unpickler of torch 2.13 knows, and a few other safe ones, for arrays and
scalars of NumPy. The functions of this module return None if arguments do not fit. Their behaviour follows
torch/_weights_only_unpickler.py and numpy/_core.
"""

from __future__ import annotations

import math
from array import array as Words  # noqa: N812 - arrays are of NumPy here
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ckstore.containers.pickle_values import Global, NumpyArray, NumpyDtype, PlainNode, PlainObject, as_key, is_odd_key
from ckstore.model.canonical import fits_json
from ckstore.model.manifest.leaf_records import elements, numpy_itemsize
from ckstore.model.manifest.nodes import text_of_bytes
from ckstore.model.manifest.python_values import FACTORIES

_OF_NUMPY = ("numpy._core", "numpy.core")  # the names of the package in NumPy 2 and NumPy 1
# An attacker can choose numbers and tuples that all have the same hash. Building a dict of them takes time proportional
# to the square of their number.
ODD_KEYS_MOST = 10_000
# A scalar is stored as text in the manifest, where a long text would slow down every reader.
_SCALAR_BYTES_MOST = 4 * 4096
# The longest unit of NumPy has seven letters.
_UNIT_CHARS_MOST = 16
_WORDS = {2: "H", 4: "I", 8: "Q"}
_ARRAY = Global("numpy", "ndarray")
_OBJECTS = {
    Global("argparse", "Namespace"): "argparse.Namespace",
    Global("types", "SimpleNamespace"): "types.SimpleNamespace",
    Global("collections", "UserDict"): "collections.UserDict",
    Global("UserDict", "IterableUserDict"): "collections.UserDict",  # the name in protocol 2, for Python 2
}
"""Classes of Python whose objects consist of their attributes. A state may also contain such objects."""


def fill_dict(into: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Set the items of a dict."""
    for key, value in zip(keys, values, strict=True):
        into[as_key(key)] = value


def set_attributes(ordered: OrderedDict[Any, Any], state: Any) -> bool:
    """Set the attributes of an OrderedDict, such as the state dict of a module, or return False if this is unsafe."""
    # An attribute named like a method would replace that method for the program that reads the value.
    if type(state) is not dict or any(type(key) is not str or hasattr(OrderedDict, key) for key in state):
        return False
    vars(ordered).update(state)
    return True


def set_fields(made: PlainObject, state: Any) -> bool:
    """Set the attributes of an object, or return False if `state` does not consist of attributes."""
    if type(state) is not dict or any(type(key) is not str for key in state):
        return False
    made.fields.update(state)
    return True


def set_array_state(array: NumpyArray, state: Any) -> None:
    """Set the state of an array like ``ndarray.__setstate__``: version, shape, dtype, order and bytes."""
    array.unknown = "a NumPy array with a state that NumPy does not write"
    if type(state) is not tuple or len(state) != 5:
        return
    _, shape, dtype, is_fortran, data = state
    if type(dtype) is NumpyDtype:
        _fill_array(array, data, dtype, shape, is_fortran=bool(is_fortran))
        if not array.unknown and dtype.order == ">":  # as NumPy does when it reads a pickle
            array.data = _swapped(dtype, array.data)
            array.dtype = replace(dtype, order="<")


def _swapped(dtype: NumpyDtype, data: bytes) -> bytes:
    """Return the bytes of elements in the other byte order."""
    kind, size = dtype.code[0], int(dtype.code[1:])
    width = {"c": size // 2, "U": 4, "S": 1}.get(kind, size)
    if width == 1:
        return data
    # Python's `array` module swaps bytes in C. NumPy is not imported for this, because the file may never be loaded.
    words = Words(_WORDS[width], data)
    words.byteswap()
    return words.tobytes()


def set_dtype_state(dtype: NumpyDtype, state: Any) -> None:
    """Set the state of a dtype like ``dtype.__setstate__``: its byte order, and the unit of times."""
    is_plain = type(state) is tuple and len(state) in (8, 9) and all(part is None for part in state[2:5])
    if not is_plain or type(state[1]) is not str or state[1] not in ("<", ">", "|", "="):
        dtype.unknown = f"the NumPy dtype {dtype.code} with fields"
        return
    dtype.order = "<" if state[1] in ("|", "=") else state[1]
    if dtype.code in ("M8", "m8"):
        dtype.unit = _unit(state[8] if len(state) > 8 else None)
    if numpy_itemsize(dtype.text) is None:
        dtype.unknown = f"the NumPy dtype {dtype.text!a}"


def _unit(metadata: Any) -> str:
    """Return the unit of a dtype of times, such as ``[25s]`` for ``({}, (b"s", 25, 1, 1))``."""
    counted = metadata[1] if type(metadata) is tuple and len(metadata) == 2 else None
    if type(counted) is not tuple or len(counted) != 4 or type(counted[0]) is not bytes:
        return ""
    name, count = counted[0][:_UNIT_CHARS_MOST].decode("latin-1"), counted[1]
    if name == "generic" or type(count) is not int or not 0 < count < 10**9:
        return ""
    return f"[{count if count > 1 else ''}{name}]"


def _fill_array(array: NumpyArray, data: Any, dtype: NumpyDtype, shape: Any, *, is_fortran: bool) -> None:
    if dtype.unknown:
        array.unknown = dtype.unknown
        return
    item_bytes = numpy_itemsize(dtype.text)
    if type(shape) is not tuple or len(shape) > 64 or any(type(size) is not int or size < 0 for size in shape):
        return
    if type(data) not in (bytes, bytearray) or item_bytes is None or elements(shape) is None:
        return
    if len(data) == item_bytes * math.prod(shape):
        # The dtype is copied, because a later change by the pickle would not be checked against this array.
        array.dtype, array.shape, array.is_fortran, array.data = replace(dtype), shape, is_fortran, bytes(data)
        array.unknown = ""


def _dtype(args: tuple[Any, ...]) -> Any:
    if not args or type(args[0]) is not str or len(args[0]) > 12:
        return None
    found = NumpyDtype(args[0])
    if numpy_itemsize(found.text) is None:
        found.unknown = f"the NumPy dtype {args[0]!a}"
    return found


def _scalar(args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or type(args[0]) is not NumpyDtype or type(args[1]) is not bytes:
        return None
    dtype, data = args
    if dtype.order == ">" and not dtype.unknown and numpy_itemsize(dtype.text) == len(data):
        dtype, data = replace(dtype, order="<"), _swapped(dtype, data)
    if (
        dtype.unknown
        or dtype.code[0] == "S"
        or len(data) > _SCALAR_BYTES_MOST
        or numpy_itemsize(dtype.text) != len(data)
    ):
        return None
    if dtype.code[0] == "U":
        try:
            text = data.decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError:
            return None
        return PlainNode(["numpy.str_", text]) if fits_json(text) else None
    return PlainNode(["numpy", dtype.text, text_of_bytes(data)])


def _reconstruct(args: tuple[Any, ...]) -> Any:
    if len(args) != 3 or args[0] != _ARRAY:
        return None
    return NumpyArray(unknown="a NumPy array without a state")


def _from_buffer(args: tuple[Any, ...]) -> Any:
    if len(args) != 4 or type(args[1]) is not NumpyDtype or args[3] not in ("C", "F"):
        return None
    made = NumpyArray(unknown="a NumPy array with a state that NumPy does not write")
    _fill_array(made, args[0], args[1], args[2], is_fortran=args[3] == "F")
    return made


def _filled(into: dict[Any, Any], args: tuple[Any, ...]) -> dict[Any, Any] | None:
    """Add the pairs in the first argument, if there is one, to a dict, and return the dict.

    Python 2 wrote such lists of pairs.
    """
    if not args:
        return into
    pairs = args[0]
    if len(args) > 1 or type(pairs) is not list or any(type(p) not in (list, tuple) or len(p) != 2 for p in pairs):
        return None
    if sum(is_odd_key(pair[0]) for pair in pairs) > ODD_KEYS_MOST:
        return None
    fill_dict(into, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return into


def _counter(args: tuple[Any, ...]) -> Any:
    if len(args) > 1 or (args and type(args[0]) is not dict):
        return None
    made: Counter[Any] = Counter()
    # `Counter.update` is not used, because it adds counts, which may call methods of the values.
    dict.update(made, args[0] if args else {})
    return made


def _defaultdict(args: tuple[Any, ...]) -> Any:
    if len(args) > 1:
        return None
    if not args or args[0] is None:
        return defaultdict(None)
    factory = FACTORIES.get(args[0].name) if type(args[0]) is Global and args[0].module == "builtins" else None
    return None if factory is None else defaultdict(factory)


def _items(args: tuple[Any, ...]) -> list[Any] | None:
    if not args:
        return []
    if len(args) > 1 or type(args[0]) not in (list, tuple) or sum(map(is_odd_key, args[0])) > ODD_KEYS_MOST:
        return None
    return [as_key(item) for item in args[0]]


def _complex(args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or any(type(part) not in (int, float) for part in args):
        return None
    try:
        return complex(*args)
    except OverflowError:
        return None


def _encode(args: tuple[Any, ...]) -> Any:
    """Encode a text like `_codecs.encode`, with which protocol 2 writes bytes."""
    # Other codecs could run code of the user's environment.
    if len(args) != 2 or type(args[0]) is not str or args[1] not in ("latin1", "latin-1"):
        return None
    try:
        return args[0].encode("latin-1")
    except UnicodeEncodeError:
        return None


def _bytes(args: tuple[Any, ...]) -> Any:
    if not args:
        return b""
    return bytes(args[0]) if len(args) == 1 and type(args[0]) in (bytes, bytearray) else _encode(args)


def _of(kind: Callable[[Any], Any], found: Any) -> Any:
    return None if found is None else kind(found)


def _making(kind: str) -> Callable[[tuple[Any, ...]], Any]:
    return lambda args: None if args else PlainObject(kind)


PLAIN_FUNCTIONS: dict[Global, Callable[[tuple[Any, ...]], Any]] = {
    **{name: _making(kind) for name, kind in _OBJECTS.items()},
    Global("collections", "OrderedDict"): lambda args: _filled(OrderedDict(), args),
    Global("collections", "Counter"): _counter,
    Global("collections", "defaultdict"): _defaultdict,
    Global("builtins", "dict"): lambda args: _filled({}, args),
    Global("builtins", "set"): lambda args: _of(set, _items(args)),
    Global("builtins", "frozenset"): lambda args: _of(frozenset, _items(args)),
    Global("builtins", "complex"): _complex,
    Global("builtins", "bytes"): _bytes,
    Global("builtins", "bytearray"): lambda args: _of(bytearray, _bytes(args)),
    Global("_codecs", "encode"): _encode,
    Global("numpy", "dtype"): _dtype,
    **{Global(f"{core}.multiarray", "_reconstruct"): _reconstruct for core in _OF_NUMPY},
    **{Global(f"{core}.multiarray", "scalar"): _scalar for core in _OF_NUMPY},
    **{Global(f"{core}.numeric", "_frombuffer"): _from_buffer for core in _OF_NUMPY},
}
