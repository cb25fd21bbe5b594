"""The encoding of a compacted checkpoint: what is not one is refused before anything is read by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ckstore.errors import BadInput, DamagedBlob, NewerFormat
from ckstore.model.digest import ALGORITHMS
from ckstore.model.document import parse_object
from ckstore.model.manifest import encoding
from ckstore.model.manifest.encoding import EncodedBlob, Encoding
from ckstore.model.manifest.manifest import BlobRecord


def digest(number: int) -> str:
    return f"xxh3-{number:032x}"


def members(**changes: Any) -> dict[str, Any]:
    whole = {
        "checkpoint": digest(99),
        "encoded": [[digest(1), 10, 0, [digest(2)]], [digest(2), 20, 1, []]],
        "files": [[digest(11), 5], [digest(12), 6], [digest(3), 30]],
        "format": "ckstore-manifest",
        "place": 4,
        "requires": ["encoded-1"],
        "version": 1,
    }
    return {**whole, **changes}


def test_what_is_written_is_read() -> None:
    found = encoding.parse(members(), "it")
    text = encoding.render(found, ALGORITHMS["xxh3_128"])

    assert text.startswith(b'{"digest":"xxh3-')
    assert b'"manifest":{"checkpoint":"' in text[:100]
    body = text[text.index(b'"manifest":') + len(b'"manifest":') : -2]
    assert encoding.parse(parse_object(body, where="it"), "it") == found
    assert found.path(digest(1)) == [digest(1), digest(2)]
    assert [found.file_of(digest(number)) for number in (1, 2, 3)] == [digest(11), digest(12), digest(3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"checkpoint": "../x"},
        {"place": -1},
        {"files": 3},
        {"files": [[digest(11), 5]] * 2},
        {"files": [["..", 5]]},
        {"files": [[digest(11), 2**40]]},
        {"encoded": [[digest(1), 10, 9, []]]},
        {"encoded": [[digest(1), 10, 0, [digest(7)]]]},
        {"encoded": [[digest(1), 10, 0, []]] * 2},
        {"encoded": [[digest(3), 30, 0, []]]},
        {"encoded": [[digest(1), -1, 0, []]]},
        {"encoded": [[digest(1), 10, True, []]]},
        {"encoded": [[digest(1), 10, 0]]},
        {"encoded": [[digest(1), 10, 0, [digest(1)]]]},
        {"encoded": [[digest(1), 10, 0, [digest(2)]], [digest(2), 10, 1, [digest(1)]]]},
        {"encoded": [[digest(100 + i), 10, 0, [digest(101 + i)] if i < 8 else []] for i in range(9)]},
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_what_is_not_an_encoding_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        encoding.parse(members(**changes), "it")


def test_a_path_of_eight_is_the_longest() -> None:
    chain = [[digest(100 + i), 10, 0, [digest(101 + i)] if i < 7 else [digest(3)]] for i in range(8)]

    assert len(encoding.parse(members(encoded=chain), "it").path(digest(100))) == 9


@pytest.mark.parametrize("of", ["one long chain", "one long loop", "wide"])
def test_a_hostile_graph_takes_time_by_its_size(of: str) -> None:
    count = 20_000
    bases: Callable[[int], list[str]] = {
        "one long chain": lambda i: [digest(i + 1)] if i < count - 1 else [],
        "one long loop": lambda i: [digest((i + 1) % count)],
        "wide": lambda i: [digest(j) for j in range(i + 1, min(i + 20, count))],
    }[of]
    encoded = [[digest(i), 10, 0, bases(i)] for i in range(count)]
    start = time.process_time()

    with pytest.raises(BadInput):
        encoding.parse(members(encoded=encoded, files=[[digest(10**9), 5]]), "it")

    assert time.process_time() - start < 5


def test_a_newer_encoding_is_refused_as_newer() -> None:
    with pytest.raises(NewerFormat, match="encoded-2"):
        encoding.parse(members(requires=["encoded-1", "encoded-2"]), "it")


@pytest.mark.parametrize(
    "blobs, checkpoint",
    [
        ([BlobRecord(digest(1), 11)], digest(99)),
        ([BlobRecord(digest(4), 10)], digest(99)),
        ([BlobRecord(digest(3), 31)], digest(99)),
        ([BlobRecord(digest(1), 10)], digest(98)),
    ],
    ids=["another size", "no such blob", "another size of a plain one", "another checkpoint"],
)
def test_an_encoding_of_another_manifest_is_damage(blobs: list[BlobRecord], checkpoint: str) -> None:
    found = Encoding(digest(99), (BlobRecord(digest(3), 30),), {digest(1): EncodedBlob(10, 0, ())})

    with pytest.raises(DamagedBlob):
        encoding.check_fits(found, blobs, checkpoint, "it")
