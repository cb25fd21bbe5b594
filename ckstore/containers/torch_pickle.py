"""What a pickle of torch.save says, without doing it: tensors in dicts, lists and tuples; all else is opaque.

A pickle is a program. This follows its opcodes with a stack and a memo of its own, and knows by their names the few
functions that torch.save writes for tensors (`torch_values`). Nothing is imported, looked up or called. It does not
recurse, and what it keeps is bounded by the number of opcodes. Source: pickle.py of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ckstore.containers.pickle_opcodes import decimal_of, opcodes, text_of
from ckstore.containers.torch_values import FUNCTIONS, OPAQUE, Global, storage_of
from ckstore.containers.values import refuse

MAX_OPCODES = 5_000_000
"""What torch.save writes for more than a hundred thousand tensors."""
MAX_TEXT = 4096
"""Bytes of the longest string that is kept; a longer one is not a part of a name."""

_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_INTS = {"BININT", "LONG1", "LONG4"}
_COUNTS = {"BININT1", "BININT2"}
_DECIMALS = {"INT", "LONG"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_NOTHING = {"PROTO", "FRAME", "STOP", "READONLY_BUFFER"}
_INT_BYTES = 8


def read_pickle(data: bytes) -> Any:
    """Return the value of a pickle, made of dict, list, tuple, str, int, None, `TensorView` and `OPAQUE`.

    Dicts keep only keys that are strings or integers. A container may be in several places, also in itself.

    Raises:
        Refused: It is not a pickle, or has more than `MAX_OPCODES`.
    """
    machine = _Machine()
    for count, (name, arg) in enumerate(opcodes(data)):
        if count >= MAX_OPCODES:
            refuse("the pickle", f"at most {MAX_OPCODES} opcodes", "more")
        machine.step(name, arg)
    return machine.pop()


class _Machine:
    """The stack and the memo of an unpickler. A mark puts the stack aside and begins a new one, as in pickle.py."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, arg: bytes) -> None:
        """Follow one opcode.

        Raises:
            Refused: It takes what is not there.
        """
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
            self._push(_constant(name, arg))

    def pop(self) -> Any:
        """Return the value on top, and take it away."""
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

    def _drop_to_mark(self) -> None:
        self._pop_mark()

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

    def _set_items(self, values: list[Any]) -> None:
        into = self._top()
        if type(into) is dict:
            _fill(into, values)

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        _fill(made, self._pop_mark())
        self._push(made)

    def _stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        known = type(module) is str and type(name) is str
        self._push(Global(module, name) if known else OPAQUE)

    def _persistent_id(self) -> None:
        self._push(storage_of(self.pop()))

    def _reduce(self) -> None:
        args, function = self.pop(), self.pop()
        known = type(function) is Global and type(args) is tuple
        make = FUNCTIONS.get(function) if known else None
        self._push(OPAQUE if make is None else make(args))

    def _build(self) -> None:
        self.pop()
        # An OrderedDict with attributes stays what it is, as the state dict of a module; what else has a state is
        # changed by it in ways that only its class knows.
        if type(self._top()) is not dict:
            self._opaque(1)

    def _opaque(self, count: int) -> None:
        for _ in range(count):
            self.pop()
        self._push(OPAQUE)

    def _opaque_from_mark(self) -> None:
        self._pop_mark()
        self._push(OPAQUE)

    _OPCODES: ClassVar[dict[str, Callable[[_Machine], None]]] = {
        "NONE": lambda self: self._push(None),
        "MARK": _mark,
        "POP": _pop_or_mark,
        "POP_MARK": _drop_to_mark,
        "DUP": lambda self: self._push(self._top()),
        "MEMOIZE": _memoize,
        "EMPTY_DICT": lambda self: self._push({}),
        "EMPTY_LIST": lambda self: self._push([]),
        "EMPTY_TUPLE": lambda self: self._push(()),
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
        "ADDITEMS": _drop_to_mark,
        "FROZENSET": _opaque_from_mark,
        "STACK_GLOBAL": _stack_global,
        "BINPERSID": _persistent_id,
        "REDUCE": _reduce,
        "BUILD": _build,
        "NEWOBJ": lambda self: self._opaque(2),
        "NEWOBJ_EX": lambda self: self._opaque(3),
        "OBJ": _opaque_from_mark,
        "INST": _opaque_from_mark,
    }


def _fill(into: dict[Any, Any], values: list[Any]) -> None:
    if len(values) % 2:
        refuse("the pickle", "keys with values", "an odd number")
    for i in range(0, len(values), 2):
        if type(values[i]) in (str, int):
            into[values[i]] = values[i + 1]


def _constant(name: str, arg: bytes) -> Any:
    """Return the value that an opcode puts on the stack by itself."""
    if name in _TEXTS and len(arg) <= MAX_TEXT:
        return text_of(arg)
    if name in _INTS and len(arg) <= _INT_BYTES:
        return int.from_bytes(arg, "little", signed=True)
    if name in _COUNTS:
        return int.from_bytes(arg, "little")
    if name in _DECIMALS:
        value = decimal_of(arg)
        return OPAQUE if value is None else value
    if name == "GLOBAL":
        module, attribute, _ = text_of(arg).split("\n")
        return Global(module, attribute)
    return OPAQUE


def _memo_key(name: str, arg: bytes) -> int:
    key = decimal_of(arg) if name in ("PUT", "GET") else int.from_bytes(arg, "little")
    if key is None:
        refuse("the pickle", "the number of a memo entry", "something else")
    return key
