"""Digests are the published functions, and their form is exactly one."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput, MissingExtra
from ckstore.model.digest import ALGORITHMS, algorithm_named, algorithm_of, fan_out, is_digest, short_id

XXH3 = ALGORITHMS["xxh3_128"]


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "99aa06d3014798d86001c324468d497f"),
        (b"abc", "06b05ab6733a618578af5f94892f3950"),
    ],
)
def test_xxh3_of_known_bytes(data: bytes, expected: str) -> None:
    assert XXH3.digest(data) == f"xxh3-{expected}"


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_parts_have_the_digest_of_the_whole(data: bytes, cuts: list[int]) -> None:
    running = XXH3.start()
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in zip(edges, [*edges[1:], len(data)], strict=True):
        running.update(data[begin:end])

    assert XXH3.digest_of_parts(running) == XXH3.digest(data) == f"xxh3-{xxhash.xxh3_128_hexdigest(data)}"


@given(data=st.binary(max_size=50))
def test_a_digest_has_the_form_of_one_and_knows_its_algorithm(data: bytes) -> None:
    digest = XXH3.digest(memoryview(data))

    assert is_digest(digest)
    assert algorithm_of(digest) is XXH3
    assert digest.startswith(f"xxh3-{fan_out(digest)}")
    assert f"xxh3-{short_id(digest, 32)}" == digest


@pytest.mark.parametrize(
    "text",
    [
        *("", "xxh3-", "xxh3-" + "0" * 31, "xxh3-" + "0" * 33, "xxh3-" + "A" * 32, "xxh3-" + "0" * 32 + "\n"),
        *("blake3-" + "0" * 32, "sha256-" + "0" * 64, "0" * 32, "xxh3-" + "\u0660" * 32, None, 3, b"xxh3-" + b"0" * 32),
    ],
)
def test_nothing_else_has_the_form_of_a_digest(text: object) -> None:
    assert not is_digest(text)


def test_blake3_is_refused_with_what_to_install_or_gives_its_digest() -> None:
    blake3 = algorithm_named("blake3")
    try:
        digest = blake3.digest(b"")
    except MissingExtra as error:
        hint = error.hint
    else:
        assert digest == "blake3-af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        return
    assert hint == "pip install 'ckstore[blake3]'"


@pytest.mark.parametrize("name", ["sha256", "", None, 3, "XXH3_128"])
def test_an_unknown_algorithm_is_refused(name: object) -> None:
    with pytest.raises(BadInput, match="hash must be one of xxh3_128, blake3, got "):
        algorithm_named(name)
