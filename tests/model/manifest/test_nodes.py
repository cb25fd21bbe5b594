"""Plain values as nodes; docs/format/v1.md, "Nodes"."""

from __future__ import annotations

import json
import math
import struct
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.canonical import fits_json
from ckstore.model.document import is_big_decimal, parse_foreign, parse_object
from ckstore.model.manifest.nodes import (
    NotStored,
    decode_key,
    decode_scalar,
    encode_bytes,
    encode_complex,
    encode_float,
    encode_int,
    encode_key,
    identity_of,
)
from ckstore.model.manifest.python_values import encode_decimal, is_python_value

floats = st.floats() | st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack(">d", data)[0])


def through_json(node: Any) -> Any:
    return json.loads(json.dumps(node, allow_nan=False))


@given(value=st.integers() | st.integers(2**53 - 2, 2**53 + 2) | st.integers().map(lambda n: n**40))
def test_an_integer_of_any_size_comes_back_as_value_and_as_key(value: int) -> None:
    node = through_json(encode_int(value))

    assert decode_scalar(node) == value
    assert decode_key(node) == value


@pytest.mark.parametrize("value", [2**53, -(2**53)])
def test_integers_that_json_holds_stand_for_themselves(value: int) -> None:
    assert encode_int(value) == value


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_integers_that_json_may_round_are_written_in_decimal(value: int) -> None:
    assert encode_int(value) == ["int", str(value)]


def test_an_integer_beyond_what_python_prints_comes_back() -> None:
    value = -(10**20000) - 7

    assert decode_scalar(encode_int(value)) == value


@pytest.mark.parametrize("value", [2**100_000 - 1, -(2**99_999)], ids=["above", "below"])
def test_the_longest_integer_that_is_saved_is_read_again(value: int) -> None:
    node = encode_int(value)

    assert is_big_decimal(node[1])
    assert decode_scalar(node) == value


@pytest.mark.parametrize("value", [2**100_000, -(2**100_000)], ids=["above", "below"])
def test_an_integer_that_would_not_be_read_again_is_not_saved(value: int) -> None:
    with pytest.raises(NotStored, match=r"more than 100,000 bits \(30,103 digits\)"):
        encode_int(value)
    with pytest.raises(ValueError, match=r"has more than 30,103 digits"):
        encode_key(value)


def test_a_number_of_millions_of_digits_is_refused_at_once() -> None:
    begin_s = time.process_time()
    digits = "7" * 3_000_000

    assert not is_big_decimal(digits)
    assert identity_of(["int", digits]) is None
    assert not is_python_value(["decimal", digits])
    with pytest.raises(NotStored, match="a Decimal of more than 30,103 digits"):
        encode_decimal(Decimal("7" * 30_104))
    for number in (digits, f"{digits}.0", f"0.{digits}", f"1e{digits}"):
        with pytest.raises(BadInput, match=r"digits|integer"):
            parse_object(b'{"x": %s}' % number.encode(), where="x")
        with pytest.raises(ValueError, match="digits"):
            parse_foreign(b'{"x": %s}' % digits.encode())
    assert time.process_time() - begin_s < 2


@given(value=floats)
def test_every_bit_of_a_float_comes_back(value: float) -> None:
    back = decode_scalar(through_json(encode_float(value)))

    assert struct.pack(">d", back) == struct.pack(">d", value)


@given(real=floats, imag=floats)
def test_every_bit_of_a_complex_number_comes_back(real: float, imag: float) -> None:
    value = complex(real, imag)

    back = decode_scalar(through_json(encode_complex(value)))

    assert isinstance(back, complex)
    assert struct.pack(">dd", back.real, back.imag) == struct.pack(">dd", value.real, value.imag)


def test_numbers_that_json_lacks_are_their_bits() -> None:
    assert encode_float(math.inf) == ["float", "7ff0000000000000"]
    assert encode_complex(complex(1.5, -math.inf)) == ["complex", 1.5, "fff0000000000000"]


def test_a_float_that_another_writer_wrote_as_integer_is_a_float() -> None:
    value = decode_scalar(["float", 3])

    assert type(value) is float
    assert value == 3


@given(value=st.binary(max_size=300))
def test_bytes_come_back(value: bytes) -> None:
    assert decode_scalar(through_json(encode_bytes(value))) == value


@given(value=st.none() | st.booleans() | st.text())
def test_what_json_has_stands_for_itself(value: object) -> None:
    assert decode_scalar(value) is value


@given(text=st.text(st.characters(min_codepoint=0xD7FE, max_codepoint=0xE001, exclude_categories=())))
def test_a_text_fits_json_exactly_if_json_gives_it_back(text: str) -> None:
    assert fits_json(text) == (through_json(text) == text)


def test_the_node_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="found 'list'"):
        decode_scalar(["list", []])
