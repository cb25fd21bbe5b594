"""Pickles are read as the opcodes say, and nothing of them is ever run."""

from __future__ import annotations

import builtins
import importlib
import os
import pickle
import random
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.containers.parsed_values import Refused
from ckstore.containers.pickle_values import Unknown
from ckstore.containers.torch_pickle import read_pickle
from ckstore.containers.torch_values import FUNCTIONS
from ckstore.containers.torch_zip import tensors_in
from tests.containers.files import cut_checked, pickle_file
from tests.support.requirements import CRASH_FULL

trees = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(-(2**63), 2**63 - 1),
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-5, 5), below, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.property
@given(value=trees, protocol=st.integers(1, 5))
def test_containers_strings_and_integers_are_what_unpickling_gives(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(1, 6))
def test_what_is_in_two_places_or_in_itself_is_so_afterwards(protocol: int) -> None:
    shared = ["x"]
    value: dict[str, Any] = {"a": shared, "b": shared}
    value["self"] = value

    found = read_pickle(pickle.dumps(value, protocol))

    assert found["a"] is found["b"]
    assert found["self"] is found


@pytest.mark.parametrize("protocol", range(1, 6))
def test_plain_values_are_what_unpickling_gives(protocol: int) -> None:
    value = [1.5, -0.0, True, b"a", b"", {1, (2, "a")}, frozenset([1]), 1j, "x" * 5000, bytearray(b"a")]
    value += [2**70] if protocol > 1 else []  # which is written in more digits than are read
    value += [OrderedDict(a=1), Counter("aab"), defaultdict(list, {"a": [1]}), {1.5: 1, None: 2, (1, "a"): 3}]

    found = read_pickle(pickle.dumps(value, protocol))

    assert [type(one) for one in found] == [type(one) for one in value]
    assert found == value


@pytest.mark.parametrize("protocol", range(1, 6))
def test_other_values_are_known_by_the_name_of_their_class(protocol: int) -> None:
    found = read_pickle(pickle.dumps([Path(), Decimal(1), Fraction(1, 2), Foreign(), deque([1])], protocol))

    here = __name__
    assert [one.description for one in found] == [
        f"{PosixPath.__module__}.PosixPath",  # pathlib, or pathlib._local in Python 3.13
        "decimal.Decimal",
        "fractions.Fraction",
        f"{here}.Foreign",
        "collections.deque",
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"L" + b"9" * 10_000 + b"L\n.",
        b"Iabc\n.",
        b"Fabc\n.",
        b"S'\\e'\n.",
        b"Vtext\n.",
        b"U\x01\xff.",
        b"\x8b\x00\x01\x00\x00" + bytes(255) + b"\1.",
        b"\x82\x01.",
        b"Pa\n.",
        b"\x97.",
        b"N)R.",
        b"ccollections\nOrderedDict\n(K\x01tR.",
        b"]}b.",
        b"K\x01K\x02a.",
        b"Nccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsK\x01sb.",
    ],
)
def test_what_no_pickler_writes_is_unknown(data: bytes) -> None:
    assert type(read_pickle(data)) is Unknown


def test_a_key_that_would_be_hashed_without_end_is_unknown() -> None:
    nested = b"}" + b")" + b"\x85" * 50_000 + b"K\x01s."
    doubled = b"})" + b"q\x00h\x00\x86" * 60 + b"K\x01s."
    for data in (nested, doubled, b"}]K\x01s."):
        (key,) = read_pickle(data)
        assert type(key) is Unknown


def test_keys_that_may_have_one_hash_are_few() -> None:
    many = b"}(" + b"".join(b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(2**10, 2**14))
    with pytest.raises(Refused, match="at most 10000 keys"):
        read_pickle(many + b"u.")


@pytest.mark.parametrize("call", [b"c_codecs\nencode\n", b"cbuiltins\nset\n", b"ccollections\nOrderedDict\n"])
def test_a_value_that_many_calls_copy_is_given_up(call: bytes) -> None:
    value = b"X\x00\x00\x01\x00" + b"a" * 2**16 if b"encode" in call else b"](" + b"K\x01" * 2**16 + b"e"
    args = b"h\x00X\x06\x00\x00\x00latin1\x86" if b"encode" in call else b"h\x00\x85"
    with pytest.raises(Refused, match="calls and states of at most a few times its size"):
        read_pickle(value + b"q\x00" + call + b"q\x01" + (b"h\x01" + args + b"R") * 20 + b".")


class Foreign:
    """An object of a class that is not on the list."""


class Payload:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function = function
        self.args = args

    def __reduce__(self) -> Any:
        return self.function, self.args


def forbid(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make whatever unpickling needs fail, and note it."""
    ran: list[str] = []

    def trap(name: str) -> Any:
        def run(*args: Any, **options: Any) -> NoReturn:
            ran.append(name)
            raise AssertionError(name)

        return run

    for module, name in (
        (os, "system"),
        (builtins, "eval"),
        (builtins, "exec"),
        (importlib, "import_module"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (builtins, "__import__"),  # the last, since monkeypatch imports too
    ):
        monkeypatch.setattr(module, name, trap(name))
    return ran


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_never_run(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = tmp_path / "witness"
    payloads = [
        Payload(os.system, f"touch {witness}"),
        Payload(eval, f"open({str(witness)!r}, 'w')"),
        Payload(importlib.import_module, "antigravity"),
        Payload(Path.touch, witness),
    ]
    pickled = [pickle.dumps({"a": payload, "b": [payload]}, protocol) for payload in payloads]
    pickled += [
        b"cos\nsystem\n(S'touch " + str(witness).encode() + b"'\ntR.",
        b"(S'touch " + str(witness).encode() + b"'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch " + str(witness).encode() + b"'\no.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n(cos\nsystem\nK\x00)tR.",
        b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncos\nsystem\n(X\x02\x00\x00\x00idt}tR.",
        b"\x80\x02cthis\ns\n)\x81}b.",
    ]
    data = [pickle_file(one, {"0": bytes(8)}) for one in pickled]
    imported = set(sys.modules)
    with monkeypatch.context() as patches:
        ran = forbid(patches)
        found = [cut_checked(one, "x.pt") for one in data]

    assert ran == []
    assert set(sys.modules) == imported
    assert not witness.exists()
    assert {cut.kind for cut in found} == {"torch-zip"}
    assert all(cut.tensors == () for cut in found)


BROKEN = {
    "nothing": b"",
    "no end": b"\x80\x02}",
    "an empty stack": b".",
    "a reduction of nothing": b"R.",
    "a tuple of too few": b"N\x87.",
    "a mark that is not there": b"Nt.",
    "a memo that is not there": b"h\x05.",
    "a key without a value": b"}(Nu.",
    "an unknown opcode": b"\xff.",
    "a text of exabytes": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "no number of a memo entry": b"Npx\n.",
    "no UTF-8": b"X\x01\x00\x00\x00\xff.",
    "a build of nothing": b"Nb.",
    "a memo of nothing": b"q\x00N.",
    "a mark that is cut in two": b"(N(.",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read_pickle(data)

    found = cut_checked(pickle_file(data, {"0": bytes(8)}), "x.pt")
    assert (found.kind, found.tensors) == ("torch-zip", ())
    if data:
        assert found.warnings[0].startswith("'x.pt': its tensors are stored without names: the pickle: wanted ")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02" + b"]" + b"\x85" * 50_000 + b".",
        b"\x80\x02" + b"(" * 50_000 + b"t" * 50_000 + b".",
        b"\x80\x02" + b"ctorch._tensor\n_rebuild_from_type_v2\nq\x00" + b"N" + b"h\x00\x86" * 20_000 + b"R.",
    ],
    ids=["lists", "tuples", "marks", "functions"],
)
def test_a_pickle_nested_without_end_is_followed_without_recursion(data: bytes) -> None:
    assert list(tensors_in(read_pickle(data))) == []


def test_a_pickle_that_doubles_itself_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.containers.torch_zip.MAX_STEPS", 10_000)
    doubled = b"\x80\x02]" + b"".join(b"q\x00]h\x00ah\x00a" for _ in range(60)) + b"."
    before = time.process_time()

    assert list(tensors_in(read_pickle(doubled))) == []
    assert time.process_time() - before < 5


def test_a_pickle_of_too_many_opcodes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.containers.torch_pickle.MAX_OPCODES", 1000)

    assert read_pickle(b"N0" * 400 + b"N.") is None
    with pytest.raises(Refused, match="wanted at most 1000 opcodes, found more"):
        read_pickle(b"N0" * 600 + b"N.")


def test_any_row_of_opcodes_is_read_or_refused() -> None:
    opcodes = [b"(", b".", b"0", b"1", b"2", b"N", b"}", b"]", b")", b"a", b"e", b"s", b"u", b"t", b"l", b"d", b"b"]
    opcodes += [b"R", b"Q", b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x8f", b"\x90", b"\x91", b"\x92", b"\x93"]
    opcodes += [b"q\x00", b"h\x00", b"\x94", b"K\x01", b"J\xff\xff\xff\xff", b"X\x01\x00\x00\x00a", b"\x8c\x07storage"]
    opcodes += [b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"o"]
    opcodes += [
        b"ctorch._tensor\n_rebuild_from_type_v2\n",
        b"itorch\nfloat32\n",
        b"\x97",
        b"\x98",
        b"\x82\x01",
        b"Pa\n",
    ]
    opcodes += [b"c%b\n%b\n" % (one.module.encode(), one.name.encode()) for one in FUNCTIONS]
    opcodes += [
        b"cnumpy\nndarray\n",
        b"\x8c\x10torch.sparse_coo",
        b"\x8c\x02f4",
        b"C\x04abcd",
        b"\x8f",
        b"t",
        b"R",
        b"R",
    ]
    rng = random.Random(11)
    read = 0
    for _ in range(20_000 if CRASH_FULL else 1_000):
        data = b"".join(rng.choices(opcodes, k=rng.randrange(30))) + b"."
        try:
            list(tensors_in(read_pickle(data)))
        except Refused:
            continue
        read += 1

    assert read > 0
