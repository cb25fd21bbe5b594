"""Objects of allowed classes and members of enumerations, converted to names and fields, and back.

`safe_classes` decides which classes are allowed. ``__init__``, ``__reduce__`` and ``__setstate__`` are never called.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType
from typing import Any

from ckstore.errors import BadInput, CannotStore
from ckstore.model.manifest.manifest import Node
from ckstore.model.manifest.nodes import PAIRS, SEQUENCES, SPARSE_KINDS
from ckstore.model.names import plain
from ckstore.tensors.named.safe_classes import (
    TENSOR_DICT,
    fields_of_tensor_dict,
    find,
    find_enum,
    is_allowed,
    is_findable_enum,
    is_tensor_dict,
    name_of,
    tensor_dict_of,
)
from ckstore.tensors.plain_values import is_named_tuple
from ckstore.tensors.refusals import is_made_of_fields, type_name


def named_value(value: Any) -> Node | None:
    """Return the node of a value that is stored by name: a member of an enumeration, an allowed class or function.

    Return None for any other value, and for a value that a load would not find by its name.
    """
    if isinstance(value, enum.Enum):
        name = value._name_  # combined flags have a name such as "A|B", which is not the name of a member
        found = name in type(value).__members__ and is_findable_enum(type(value))
        return ["enum", name_of(type(value)), name] if found else None
    if isinstance(value, type | FunctionType | BuiltinFunctionType) and is_allowed(value):
        return ["global", name_of(value)]
    return None


def member_of(name: str, member: str, path: str) -> enum.Enum:
    """Return the member `member` of the enumeration `name`."""
    kind = find_enum(name, path)
    found = kind.__members__.get(member)
    if found is None:
        msg = f"{plain(path) or 'the state itself'}: {name} has no member {member}"
        raise BadInput(msg, hint="load it with the version of its library that saved it")
    return found


def check_names(node: Node, path: str) -> None:
    """Raise if a load would not find all names at and below a node. A load calls this before it changes anything."""
    tag = node[0] if isinstance(node, list) else None
    if tag == "enum":
        member_of(node[1], node[2], path)
    elif tag == "global":
        find(node[1], path)
    elif tag in SEQUENCES:
        for item in node[1]:
            check_names(item, path)
    elif tag in PAIRS:
        if tag == "object" or (tag == "parts" and node[2] not in SPARSE_KINDS):
            find(node[2], path)
        for _, item in node[1]:
            check_names(item, path)
        attributes = {"odict": 2, "parts": 3}.get(tag)
        if attributes is not None:
            check_names(node[attributes], path)


def taken_apart(value: Any, path: str) -> tuple[str, dict[str, Any]] | None:
    """Return the class name and fields of an object of an allowed class, or None for other objects."""
    if is_tensor_dict(value):
        return TENSOR_DICT, fields_of_tensor_dict(value, path)
    kind = type(value)
    if not (is_made_of_fields(kind) or is_named_tuple(value)) or not is_allowed(kind):
        return None
    if is_named_tuple(value):
        return name_of(kind), dict(zip(kind._fields, value, strict=True))
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    if lacking := [name for name in names if not hasattr(value, name)]:
        fields = f"the field {lacking[0]} has" if len(lacking) == 1 else f"the fields {', '.join(lacking)} have"
        reason = f"{type_name(kind)} cannot be stored, because {fields} no value"
        raise CannotStore(path, reason, hint="set every field before saving")
    # `__dict__` is not sufficient, because a field may be a slot, or have its default value in the class.
    found = {name: getattr(value, name) for name in names}
    # Like pickle, also keep attributes that are not fields, such as those that `__post_init__` sets.
    attributes = getattr(value, "__dict__", {})
    if odd := [name for name in attributes if type(name) is not str]:
        reason = (
            f"{type_name(kind)} cannot be stored, because a key of its __dict__ is not a str: {type_name(type(odd[0]))}"
        )
        raise CannotStore(path, reason, hint="store other keys in a dict that is an attribute")
    slots = _slots(kind)
    filled: dict[str, Any] = {}
    # Names that a subclass defines again: the slot of its base class may have another value than the attribute.
    twice = list(attributes.keys() & dict(slots).keys())
    for name, slot in slots:
        with suppress(AttributeError):  # the slot has no value
            twice += [name] if name in filled else []
            filled[name] = slot.__get__(value)
    if twice:
        reason = f"{type_name(kind)} cannot be stored, because its slot {twice[0]} is defined again by a subclass"
        raise CannotStore(path, reason, hint=f"give {twice[0]} another name in the subclass")
    return name_of(kind), found | filled | attributes


def put_together(name: str, fields: Mapping[str, Any], path: str) -> Any:
    """Return an object of the class `name` with these fields, without calling its ``__init__``."""
    kind: Any = find(name, path)
    if name == TENSOR_DICT:
        return tensor_dict_of(fields, path)
    if isinstance(kind, type) and issubclass(kind, tuple) and list(fields) == list(getattr(kind, "_fields", ())):
        return tuple.__new__(kind, fields.values())
    wanted = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    if (
        not is_made_of_fields(kind)
        or wanted - set(fields)
        # An object without a `__dict__` can only have values in its slots.
        or (kind.__dictoffset__ == 0 and set(fields) - dict(_slots(kind)).keys())
    ):
        msg = f"{plain(path) or 'the state itself'}: {name} is not made of the fields {', '.join(fields) or '(none)'}"
        raise BadInput(msg, hint="load it with the version of its library that saved it")
    # Do not call `__init__` or `__setstate__`. They would run code of the class with values of an untrusted file.
    made: Any = kind.__new__(kind)
    slots = dict(_slots(kind))
    for field, value in fields.items():
        if field in slots:
            slots[field].__set__(made, value)
        else:
            vars(made)[field] = value  # setattr would run a property or __setattr__
    return made


def _slots(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return the slots of a class and its base classes with their names. Slots of base classes are first."""
    return [
        (name, slot)
        for base in reversed(kind.__mro__)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType) and name != "__dict__"  # SimpleNamespace has a member `__dict__`
    ]
