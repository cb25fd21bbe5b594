"""Read a pickle without executing it: plain Python values, tensors as views of storages, and names of other objects.

A pickle is a program. This module follows the opcodes of the pickle with its own stack and memo, like pickle.py of
Python. It recognizes the names of the few functions that make tensors and plain values (`torch_values`,
`plain_functions`). No name is imported or looked up, and no function of the pickle is called. The module does not
recurse, and the size of the data that it keeps is limited by the size of the pickle.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

from ckstore.containers.parsed_values import refuse
from ckstore.containers.pickle_values import (
    Global,
    NumpyArray,
    NumpyDtype,
    PlainObject,
    Storage,
    Unknown,
    as_key,
    decimal_of,
    is_odd_key,
    name_of,
    opcodes,
    text_of,
)
from ckstore.containers.plain_functions import (
    ODD_KEYS_MOST,
    fill_dict,
    set_array_state,
    set_attributes,
    set_dtype_state,
    set_fields,
)
from ckstore.containers.torch_values import global_of, reduced, storage_of
from ckstore.model.document import shown

MAX_PICKLE_BYTES = 64 * 2**20
MAX_OPCODES = 5_000_000  # enough for more than 100,000 tensors of torch.save
# This is the maximum length of LONG1. Converting a longer integer to text would take quadratic time.
INT_BYTES_MOST = 255

_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_NOTHING = {"PROTO", "FRAME", "STOP", "READONLY_BUFFER"}
_UNKNOWN = {
    "EXT1": "an object with a code of copyreg",
    "EXT2": "an object with a code of copyreg",
    "EXT4": "an object with a code of copyreg",
    "NEXT_BUFFER": "a buffer that is not in the pickle",
    "PERSID": "a persistent id of pickle protocol 0",
    "STRING": "a string of pickle protocol 0",
    "UNICODE": "a string of pickle protocol 0",
}
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_KEYED = (*_DICTS, set, frozenset)
_COPIED = (str, bytes, bytearray, list, tuple, dict)
_ARGUMENTS_MOST = 9  # no known function has more arguments, and no known state has more items


def read_pickle(data: bytes) -> Any:
    """Return the value of a pickle.

    The value consists of dict, OrderedDict, Counter, defaultdict, list, tuple, set, frozenset, the scalars of Python,
    bytes, bytearray, and values of the classes in `pickle_values`. A container may be in several places, and may
    contain itself.
    """
    return read_first_pickle(data)[0]


def read_first_pickle(data: bytes, storages: dict[str, Storage] | None = None) -> tuple[Any, int]:
    """Return the value of the first pickle in `data`, and its length in bytes.

    The storages that the pickle describes are added to `storages`.
    """
    # Calls may only copy an amount of data in proportion to the length of the pickle. Otherwise, a small pickle could
    # create gigabytes with memo entries.
    machine = _Machine(2**16 + 4 * len(data), {} if storages is None else storages)
    stop = 0
    for count, (name, arg, end) in enumerate(opcodes(data)):
        # An opcode may be a single byte, so 64 MiB of opcodes could take minutes.
        if count >= MAX_OPCODES:
            refuse("the pickle", f"at most {MAX_OPCODES} opcodes", "more")
        machine.step(name, arg)
        stop = end
    return machine.pop(), stop


class _Machine:
    """The stack and the memo of an unpickler. A mark saves the stack and begins a new one, as in pickle.py."""

    def __init__(self, copied_most: int, storages: dict[str, Storage]) -> None:
        self._storages = storages
        self._copied_left = copied_most
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._odd_keys = 0
        self._odd_keys_called = 0

    def step(self, name: str, arg: bytes) -> None:
        """Follow one opcode."""
        do = self._OPCODES.get(name)
        if do is not None:
            do(self)
        elif name in _PUTS:
            self._memo[_memo_key(name, arg)] = self._top()
        elif name in _GETS:
            key = _memo_key(name, arg)
            if key not in self._memo:
                refuse("the pickle", f"a memo entry {key}", "none")
            self._push(self._memo[key])
        elif name not in _NOTHING:
            make = _CONSTANTS.get(name)
            self._push(Unknown(_UNKNOWN.get(name, f"the opcode {name}")) if make is None else make(arg))

    def pop(self) -> Any:
        """Remove and return the value on top."""
        if not self._stack:
            refuse("the pickle", "a value on the stack", "none")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            refuse("the pickle", "a value on the stack", "none")
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        if not self._below:
            refuse("the pickle", "a mark on the stack", "none")
        values, self._stack = self._stack, self._below.pop()
        return values

    def _pop_or_mark(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._top()

    def _tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self._push(tuple(reversed(values)))

    def _append(self, values: list[Any]) -> None:
        into = self._top()
        if type(into) is list:
            into.extend(values)
        elif type(into) is not Unknown:
            self._replace("an object that items were appended to")

    def _add_items(self) -> None:
        values = self._pop_mark()
        into = self._top()
        if type(into) is set:
            self._check_keys(values)
            into.update(map(as_key, values))
        elif type(into) is not Unknown:
            self._replace("an object that items were added to")

    def _set_items(self, values: list[Any]) -> None:
        into = self._top()
        if type(into) in _DICTS:
            self._fill(into, values)
        elif type(into) is not Unknown:
            self._replace("an object whose items were set")

    def _fill(self, into: dict[Any, Any], values: list[Any]) -> None:
        if len(values) % 2:
            refuse("the pickle", "keys with values", "an odd number")
        keys = values[::2]
        self._check_keys(keys)
        fill_dict(into, keys, values[1::2])

    def _check_keys(self, keys: list[Any]) -> None:
        self._odd_keys += sum(map(is_odd_key, keys))
        self._check_odd_keys(self._odd_keys)

    def _check_odd_keys(self, count: int) -> None:
        if count > ODD_KEYS_MOST:
            refuse(
                "the pickle", f"at most {ODD_KEYS_MOST} keys that are neither strings nor integers of 64 bits", "more"
            )

    def _replace(self, description: str) -> None:
        self._stack[-1] = Unknown(description)

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        self._fill(made, self._pop_mark())
        self._push(made)

    def _frozen_set(self) -> None:
        values = self._pop_mark()
        self._check_keys(values)
        self._push(frozenset(map(as_key, values)))

    def _stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        known = type(module) is str and type(name) is str
        # This is only a name. Nothing is imported or looked up.
        self._push(global_of(module, name) if known else Unknown("a name that is not a string"))

    def _persistent_id(self) -> None:
        found = storage_of(self.pop())
        if type(found) is Storage:
            known = self._storages.setdefault(found.key, found)
            # Two views must agree on their storage. Otherwise, one of them could reach beyond its record.
            if (known.dtype or "uint8", known.count) != (found.dtype or "uint8", found.count):
                refuse(f"the storage {shown(found.key)}", f"{known.count} of {known.dtype}", "another count or dtype")
        self._push(found)

    def _reduce(self) -> None:
        args, function = self.pop(), self.pop()
        self._call(function, args)

    def _new_object_ex(self) -> None:
        options, args, kind = self.pop(), self.pop(), self.pop()
        # No known function is pickled with keyword arguments.
        self._call(kind, args if type(options) is dict and not options else None)

    def _object(self) -> None:
        kind, *args = self._pop_mark() or [None]
        self._call(kind, tuple(args))

    def _call(self, function: Any, args: Any) -> None:
        self._count_copied(args)
        made = reduced(function, args)
        if type(made) in _KEYED:
            self._odd_keys_called += sum(map(is_odd_key, made))
            self._check_odd_keys(self._odd_keys_called)
        self._push(made)

    def _count_copied(self, given: Any) -> None:
        """Count the values that a call or a state may copy.

        A few bytes of a pickle can pass one value to many calls.
        """
        parts = given[:_ARGUMENTS_MOST] if type(given) is tuple else (given,)
        self._copied_left -= sum(len(part) for part in parts if type(part) in _COPIED)
        if self._copied_left < 0:
            refuse("the pickle", "calls and states of at most a few times its size", "more")

    def _build(self) -> None:
        state, into = self.pop(), self._top()
        self._count_copied(state)
        if type(into) is NumpyArray:
            set_array_state(into, state)
        elif type(into) is NumpyDtype:
            set_dtype_state(into, state)
        elif (type(into) is OrderedDict and set_attributes(into, state)) or (
            type(into) is PlainObject and set_fields(into, state)
        ):
            return
        elif type(into) is not Unknown:
            # The state changes any other object in ways that only its class knows.
            self._replace(f"an object of {name_of(into)} with a state of its own")

    _OPCODES: ClassVar[dict[str, Callable[[_Machine], object]]] = {
        "NONE": lambda self: self._push(None),
        "MARK": _mark,
        "POP": _pop_or_mark,
        "POP_MARK": _pop_mark,
        "DUP": lambda self: self._push(self._top()),
        "MEMOIZE": _memoize,
        "EMPTY_DICT": lambda self: self._push({}),
        "EMPTY_LIST": lambda self: self._push([]),
        "EMPTY_TUPLE": lambda self: self._push(()),
        "EMPTY_SET": lambda self: self._push(set()),
        "DICT": _dict,
        "LIST": lambda self: self._push(self._pop_mark()),
        "TUPLE": lambda self: self._push(tuple(self._pop_mark())),
        "TUPLE1": lambda self: self._tuple_of(1),
        "TUPLE2": lambda self: self._tuple_of(2),
        "TUPLE3": lambda self: self._tuple_of(3),
        "APPEND": lambda self: self._append([self.pop()]),
        "APPENDS": lambda self: self._append(self._pop_mark()),
        "SETITEM": lambda self: self._set_items([self.pop(), self.pop()][::-1]),
        "SETITEMS": lambda self: self._set_items(self._pop_mark()),
        "ADDITEMS": _add_items,
        "FROZENSET": _frozen_set,
        "STACK_GLOBAL": _stack_global,
        "BINPERSID": _persistent_id,
        "REDUCE": _reduce,
        "BUILD": _build,
        "NEWOBJ": _reduce,
        "NEWOBJ_EX": _new_object_ex,
        "OBJ": _object,
    }


def _integer(arg: bytes) -> Any:
    if len(arg) > INT_BYTES_MOST:
        return Unknown("an integer of more than 255 bytes")
    return int.from_bytes(arg, "little", signed=True)


def _decimal(arg: bytes) -> Any:
    value = decimal_of(arg)
    return Unknown("a text that is not a number") if value is None else value


def _float(arg: bytes) -> Any:
    try:
        return float(arg)
    except ValueError:
        return Unknown("a text that is not a number")


def _global(arg: bytes) -> Global:
    return global_of(*text_of(arg).split("\n")[:2])


def _old_text(arg: bytes) -> Any:
    """Return a text that Python 2 may have written, or an `Unknown` if it is not UTF-8."""
    try:
        return arg.decode()
    except UnicodeDecodeError:
        return Unknown("bytes that Python 2 wrote")


_CONSTANTS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), text_of),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), _old_text),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), bytes),
    **dict.fromkeys(("BININT", "LONG1", "LONG4"), _integer),
    **dict.fromkeys(("BININT1", "BININT2"), lambda arg: int.from_bytes(arg, "little")),
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "BINFLOAT": lambda arg: struct.unpack(">d", arg)[0],
    "BYTEARRAY8": bytearray,
    "GLOBAL": _global,
    # Protocol 0 writes a number as a line of digits, and False and True as 00 and 01.
    "INT": lambda arg: arg == b"01\n" if arg in (b"00\n", b"01\n") else _decimal(arg),
    "LONG": _decimal,
    "FLOAT": _float,
    "INST": lambda arg: Unknown(str(_global(arg))),
}
"""Opcode -> function that computes the value to push from the argument of the opcode."""


def _memo_key(name: str, arg: bytes) -> int:
    key = decimal_of(arg) if name in ("PUT", "GET") else int.from_bytes(arg, "little")
    if key is None:
        refuse("the pickle", "the number of a memo entry", "something else")
    return key
