"""Pickles that were forged: programs for an unpickler that runs them, and descriptions of more than there is."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
ORDERED = b"ccollections\nOrderedDict\n"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY_OF = b"(cnumpy\nndarray\nK\x00\x85C\x01bt"


def text(value: str) -> bytes:
    """Return the opcode of a string."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """Return the opcode of an integer."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def sizes(values: tuple[int, ...]) -> bytes:
    """Return the opcodes of a tuple of integers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str = "0", kind: str = "FloatStorage", count: Any = 2, module: str = "torch") -> bytes:
    """Return the opcodes of a storage by its persistent id."""
    told = number(count) if isinstance(count, int) else count
    return b"(" + text("storage") + f"c{module}\n{kind}\n".encode() + text(key) + text("cpu") + told + b"tQ"


def tensor(
    of: bytes | None = None, offset: int = 0, shape: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,)
) -> bytes:
    """Return the opcodes of a tensor."""
    head = TENSOR + b"(" + (storage() if of is None else of)
    return head + number(offset) + sizes(shape) + sizes(strides) + b"\x89" + ORDERED + b")RtR"


def programs(witness: Path) -> dict[str, bytes]:
    """Return pickles that make the file `witness`, each by another opcode, where they are unpickled."""
    shell = f"touch {witness}"
    posix = os.system.__module__
    call = b"(" + text(shell) + b"t"
    found = b"c" + posix.encode() + b"\nsystem\n"
    by_stack = text(posix) + text("system") + b"\x93"
    return {
        "reduce": found + call + b"R.",
        "reduce of a name on the stack": by_stack + call + b"R.",
        "inst": b"(" + text(shell) + b"i" + posix.encode() + b"\nsystem\n.",
        "obj": b"(" + found + text(shell) + b"o.",
        "a new object": found + call + b"\x81.",
        "a new object with options": found + call + b"}\x92.",
        "a name of many parts": text("os") + text("path.os.system") + b"\x93" + call + b"R.",
        "a name with an end of line": text("torch\nos") + text("system") + b"\x93" + call + b"R.",
        "a name with a null": text("os\0") + text("system") + b"\x93" + call + b"R.",
        "a name of bytes": b"C\x02os" + text("system") + b"\x93" + call + b"R.",
        "getattr": b"cbuiltins\ngetattr\n(c__builtin__\n__import__\n("
        + text("os")
        + b"tR"
        + text("system")
        + b"tR"
        + call
        + b"R.",
        "eval": b"c__builtin__\neval\n(" + text(f"open({str(witness)!r}, 'w')") + b"tR.",
        "an argument of a known function": b"ctorch._utils\n_rebuild_parameter\n("
        + found
        + call
        + b"R\x89"
        + ORDERED
        + b")RtR.",
        "the function of a subclass": b"ctorch._tensor\n_rebuild_from_type_v2\n("
        + found
        + b"ctorch\nTensor\n"
        + call
        + b"}tR.",
        "the state of an object": b"cbuiltins\nobject\n)\x81}" + text("__setstate__") + found + b"sb.",
        "the state of a dict with attributes": ORDERED + b")R}" + text("items") + found + b"sb.",
        "a factory": b"ccollections\ndefaultdict\n" + found + b"\x85R.",
        "a factory of builtins": b"ccollections\ndefaultdict\ncbuiltins\nexec\n\x85R.",
        "a persistent id": b"(" + text("storage") + found + text("0") + text("cpu") + b"K\x02tQ.",
        "a persistent id of a module": b"(" + text("module") + found + text("a") + text("b") + b"tQ.",
        "a copy": b"ccopyreg\n_reconstructor\n(" + found + b"cbuiltins\nobject\nNtR.",
        "codecs": b"c_codecs\nencode\n(" + text("a") + text("os.system") + b"tR.",
        "a dtype that is an object": b"cnumpy\ndtype\n(" + text("O8") + b"\x89\x88tR.",
        "an array of objects": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
        b"(K\x01K\x01\x85cnumpy\ndtype\n(" + text("O8") + b"\x89\x88tR\x89](" + found + call + b"Retb.",
        "an extension of one byte": b"\x82\x01.",
        "an extension of two bytes": b"\x83\x01\x00.",
        "an extension of four bytes": b"\x84\x01\x00\x00\x00.",
        "a key": b"}" + found + call + b"RNs.",
        "an element of a set": b"\x8f(" + found + call + b"R\x90.",
    }


def _doubled(begin: bytes, double: bytes, times: int = 60) -> bytes:
    return begin + b"".join([b"q\x00" + double] * times) + b"."


def bombs(n: int) -> dict[str, bytes]:
    """Return pickles of a few bytes, or some thousand, that stand for much more; `n` is how many."""
    long_text = text("x" * n)
    numbers = b"](" + b"K\x01" * n + b"e"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01"
        + number(n)
        + b"\x85cnumpy\ndtype\n("
        + text("u1")
        + b"\x89\x88tR\x89B"
        + struct.pack("<I", n)
        + bytes(n)
        + b"tb"
    )
    many = b"](" + b"h\x00" * n + b"e."
    u4 = (
        b"cnumpy\ndtype\n("
        + text("u4")
        + b"\x89\x88tR(K\x03"
        + text(">")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    odd = b"](" + b"".join(number(i * (2**61 - 1)) for i in range(1_000, 4_000)) + b"e"
    return {
        "one state of many arrays": ARRAY
        + b"q\x01"
        + ARRAY_OF
        + b"q\x02(K\x01"
        + number(n)
        + b"\x85cnumpy\ndtype\n("
        + text("u1")
        + b"\x89\x88tR\x89\x96"
        + struct.pack("<Q", n)
        + bytes(n)
        + b"tq\x00000"
        + b"h\x01h\x02Rh\x00b" * n
        + b".",
        "one array whose bytes are turned again and again": ARRAY
        + ARRAY_OF
        + b"Rq\x01(K\x01"
        + number(n // 4)
        + b"\x85"
        + u4
        + b"\x89B"
        + struct.pack("<I", n)
        + bytes(n)
        + b"tq\x00b"
        + b"h\x00b" * n
        + b".",
        "many scalars of one text": b"cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\n("
        + text("U4096")
        + b"\x89\x88tRq\x01B"
        + struct.pack("<I", 4 * 4096)
        + "x".encode("utf-32-le") * 4096
        + b"q\x02"
        + b"h\x00h\x01h\x02\x86R" * n
        + b".",
        "the same attributes of many": ORDERED
        + b"q\x00}("
        + b"".join(text(f"a{i}") + b"N" for i in range(n // 5))
        + b"uq\x01"
        + b"h\x00)Rh\x01b" * n
        + b".",
        "a long name of many objects": long_text + text("a") + b"\x93q\x00" + b"h\x00)R" * n + b".",
        "a long layout of many tensors": b"ctorch._utils\n_rebuild_sparse_tensor\nq\x00"
        b"ctorch.serialization\n_get_layout\n" + long_text + b"\x85R)\x86q\x01" + b"h\x00h\x01R" * n + b".",
        "many sets of keys of one hash": odd + b"q\x00cbuiltins\nset\nq\x01" + b"h\x01h\x00\x85R0" * n + b"N.",
        "a long name of an object": b"}" + long_text + b"cos\nsystem\n)Rs.",
        "lists that double": _doubled(b"]", b"0]h\x00ah\x00a"),
        "tuples that double": _doubled(b")", b"0h\x00h\x00\x86"),
        "dicts that double": _doubled(b"}", b"0}" + text("a") + b"h\x00s" + text("b") + b"h\x00s"),
        "attributes that double": _doubled(
            ORDERED + b")R", b"0" + ORDERED + b")R}" + text("_a") + b"h\x00s" + text("_b") + b"h\x00sb"
        ),
        "keys that double": b"}" + _doubled(b")", b"0h\x00h\x00\x86")[:-1] + b"Ns.",
        "one text in many places": long_text + b"q\x000" + many,
        "one array in many places": array + b"q\x000" + many,
        "one list of numbers in many places": numbers + b"q\x000" + many,
        "one bytes in many places": b"B" + struct.pack("<I", n) + bytes(n) + b"q\x000" + many,
        "one set in many places": b"cbuiltins\nset\n]("
        + b"".join(map(number, range(n // 10)))
        + b"e\x85Rq\x000"
        + many,
        "one long key in many places": b"}" + long_text + b"]sq\x000" + many,
        "long names of many values": b"}" + long_text + b"](" + b"]" * n + b"es.",
        "one unknown object in many places": b"cos\nsystem\n)Rq\x000" + many,
        "calls that copy": long_text
        + b"q\x00"
        + text("latin1")
        + b"q\x01c_codecs\nencode\nq\x02"
        + b"h\x02h\x00h\x01\x86R" * n
        + b".",
        "lists in lists": b"]" * n + b"a" * (n - 1) + b".",
        "tuples in tuples": b")" + b"\x85" * n + b".",
        "dicts in dicts": b"}" + (text("a") + b"}") * n + b"s" * n + b".",
        "marks": b"(" * n + b"t" * n + b".",
        "a list in itself": b"]q\x00h\x00a.",
        "a dict in itself": b"}q\x00" + text("a") + b"h\x00s.",
        "a text of exabytes": b"\x8d" + b"\xff" * 7 + b"\x7fabc.",
        "bytes of exabytes": b"\x8e" + b"\xff" * 7 + b"\x7fabc.",
        "an integer of a megabyte": b"\x8b" + struct.pack("<I", 2**20) + b"\x7f" * 2**20 + b".",
        "a great number of a memo entry": b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff.",
        "a size of a thousand dimensions": b"ctorch\nSize\n" + sizes((1,) * 1000) + b"\x85R.",
        "keys of one hash": b"}(" + b"".join(number(i * (2**61 - 1)) + b"N" for i in range(2**10, 2**14)) + b"u.",
    }


def lies() -> dict[str, bytes]:
    """Return pickles whose tensors are not in their storage: the file has one of 8 bytes, named ``0``."""
    return {
        "beyond its end": tensor(offset=1),
        "a great offset": tensor(offset=2**52),
        "a great shape": tensor(shape=(2**52,)),
        "a shape of more elements than there are numbers": tensor(shape=(2**40, 2**40), strides=(0, 0)),
        "great strides": tensor(strides=(2**60,)),
        "negative strides": tensor(strides=(-1,)),
        "a negative offset": tensor(offset=-1),
        "strides of another dimension": tensor(strides=(1, 1)),
        "a thousand dimensions": tensor(shape=(1,) * 1000, strides=(1,) * 1000),
        "a storage that is not there": tensor(storage(key="1")),
        "a storage outside": tensor(storage(key="../data.pkl")),
        "a storage by an absolute path": tensor(storage(key="/etc/passwd")),
        "more elements than there are": tensor(storage(count=3)),
        "fewer elements than there are": tensor(storage(count=1), shape=(1,)),
        "a count below zero": tensor(storage(count=-1)),
        "a count that is a text": tensor(storage(count=text("2"))),
        "a storage of an unknown dtype": tensor(storage(kind="QInt8Storage")),
        "a storage of an unknown module": tensor(storage(module="os")),
        "a storage of two dtypes": b"(" + tensor() + tensor(storage(kind="IntStorage")) + b"t",
        "a storage of two counts": b"(" + tensor() + tensor(storage(count=1), shape=(1,)) + b"t",
        "a storage alone": storage(),
        "a sparse tensor without parts": b"ctorch._utils\n_rebuild_sparse_tensor\n(ctorch.serialization\n_get_layout\n"
        + text("torch.sparse_coo")
        + b"\x85R(tt"
        + b"R",
    }
