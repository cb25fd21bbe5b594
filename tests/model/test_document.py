"""Documents are parsed to a fixed depth, whatever the interpreter would follow."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model import document as documents
from ckstore.model.document import MAX_LEVELS, parse_object
from tests.support.requirements import representatives

values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(alphabet='[]{}"\\ab', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=30,
)


def nested(levels: int, inner: object, *, lists: bool) -> dict[str, Any]:
    """Return a document of `levels` around `inner`; every second level is a list, if asked for."""
    for level in range(levels - 1):
        inner = [inner] if lists and level % 2 else {"[": inner}
    return {"a": inner}


@given(value=values, levels=st.integers(1, 60), lists=st.booleans())
def test_a_shallow_document_is_parsed_whatever_its_strings_hold(value: object, levels: int, lists: bool) -> None:
    document = nested(levels, [value, *[[]] * MAX_LEVELS], lists=lists)

    assert parse_object(json.dumps(document).encode(), where="x") == document


@given(value=values, piece_bytes=st.integers(1, 7))
def test_where_a_document_is_cut_to_be_looked_at_makes_no_difference(value: object, piece_bytes: int) -> None:
    document = nested(MAX_LEVELS - 40, [value, *[[]] * MAX_LEVELS], lists=True)
    deep = nested(MAX_LEVELS + 1, value, lists=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_PIECE_BYTES", piece_bytes)

        assert parse_object(json.dumps(document).encode(), where="x") == document
        with pytest.raises(BadInput, match=f"at most {MAX_LEVELS} levels"):
            parse_object(json.dumps(deep).encode(), where="x")


LEVELS = ['{"a":', r'{"\\":', r'{"\"":']


@pytest.mark.parametrize("level", representatives(LEVELS, LEVELS[2]), ids=["name", "backslash", "quote"])
def test_to_refuse_a_deep_document_takes_no_more_memory_than_twice_the_document(level: str) -> None:
    data = (level * 10**6 + "1" + "}" * 10**6).encode()
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=f"at most {MAX_LEVELS} levels"):
            parse_object(data, where="x")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 2 * len(data) + 64 * documents._PIECE_BYTES


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("levels,parsed", [(MAX_LEVELS, True), (MAX_LEVELS + 1, False), (900, False)])
def test_the_depth_that_is_parsed_has_a_limit(levels: int, parsed: bool, lists: bool) -> None:
    data = json.dumps(nested(levels, 1, lists=lists)).encode()

    if parsed:
        assert parse_object(data, where="x")
    else:
        with pytest.raises(BadInput, match=f"at most {MAX_LEVELS} levels"):
            parse_object(data, where="x")


@pytest.mark.parametrize(
    "text", ['{"a":' + "[" * 10**6, "[" * 10**6 + "]" * 10**6, '{"a":' * 10**6 + "1" + "}" * 10**6]
)
def test_no_depth_ends_the_process_whatever_the_limit_of_recursion_is(text: str) -> None:
    code = (
        "import sys; sys.setrecursionlimit(10**7)\n"
        "from ckstore.errors import BadInput\n"
        "from ckstore.model.document import parse_object\n"
        "try: parse_object(sys.stdin.buffer.read(), where='x')\n"
        "except BadInput as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=text.encode(), capture_output=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"nested deeper" in done.stdout


@given(
    number=st.integers(-(10**18), 10**18) | st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, 10**15 - 1, 10**15, 10**16]),
    sign=st.sampled_from([1, -1]),
    before=st.sampled_from(["", " ", "\t", "\n", "\r"]),
    form=st.sampled_from(['{{"a":{0}}}', '{{"a":[{0}]}}', '{{"a":[1,{0}]}}', '{{"a1":{{"b":{0}}},"c":"{0}"}}']),
)
def test_an_integer_is_parsed_if_every_json_reader_holds_it(number: int, sign: int, before: str, form: str) -> None:
    text = form.format(f"{before}{sign * number}") if '"c"' not in form else form.format(sign * number)

    if abs(number) <= 2**53:
        assert parse_object(text.encode(), where="x") == json.loads(text)
    else:
        with pytest.raises(BadInput, match="outside"):
            parse_object(text.encode(), where="x")


@pytest.mark.parametrize("text", ["9" * 17, "-" + "9" * 17, " " + "9" * 10**6, "[" + "9" * 17])
def test_an_integer_that_is_the_document_or_begins_a_broken_one_is_not_converted_either(text: str) -> None:
    with pytest.raises(BadInput, match="outside"):
        parse_object(text.encode(), where="x")
