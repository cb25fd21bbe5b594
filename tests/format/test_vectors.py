"""docs/format/vectors.json is what ckstore computes, and the reader of the pages agrees with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ckstore.codecs.container import decode_blob
from ckstore.codecs.tiles import Codec
from ckstore.model.digest import algorithm_of
from tests.format import reader, vectors

VECTORS: dict[str, Any] = json.loads(vectors.FILE.read_bytes())


def test_the_vectors_are_what_ckstore_computes() -> None:
    assert vectors.made(VECTORS["containers"]) == VECTORS


def test_the_reader_computes_the_same_digests_and_names() -> None:
    for each in VECTORS["digests"]:
        for algorithm in ("xxh3", "blake3"):
            assert reader.digest_of(bytes.fromhex(each["bytes"]), each[algorithm]) == each[algorithm]
    for each in VECTORS["names"]:
        name = ""
        for key in map(reader.key_of, each["keys"]):
            name = reader.join(name, key)
        assert name == each["name"]


def test_the_reader_reads_the_small_file_and_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_text(VECTORS["small_file"]["file"], "ascii")
    example = VECTORS["checkpoint"]
    directory = tmp_path / example["directory"]
    for digest, data in example["blobs"].items():
        (directory / "blobs").mkdir(parents=True, exist_ok=True)
        (directory / "blobs" / digest).write_bytes(bytes.fromhex(data))
    (directory / "manifest.json").write_text(example["manifest.json"], "ascii")

    assert reader.small_file(path, "ckstore-annotations")["metrics"] == {"bleu": 27.0}
    checkpoint = reader.Checkpoint(directory)
    assert checkpoint.id == example["id"]
    assert checkpoint.content() == checkpoint.manifest["content"]
    found = {leaf["name"]: checkpoint.leaf(i).data.hex() for i, leaf in enumerate(checkpoint.manifest["leaves"])}
    assert found == example["leaves"]


def test_the_reader_predicts_the_same() -> None:
    for each in VECTORS["predictions"]:
        assert reader.predict(each["prediction"], bytes.fromhex(each["base"])).hex() == each["predicted"]


@pytest.mark.parametrize("each", VECTORS["containers"], ids=lambda each: each["what"])
def test_a_container_is_decoded(each: dict[str, Any]) -> None:
    file, plain = bytes.fromhex(each["file"]), bytes.fromhex(each["bytes"])
    bases = {digest: bytes.fromhex(base) for digest, base in each["bases"].items()}

    assert algorithm_of(each["plain"]).digest(plain) == each["plain"]
    read_base = lambda digest, at, nbytes: memoryview(bases[digest])[at : at + nbytes]  # noqa: E731
    assert decode_blob(file, read_base, where=each["what"], most_bytes=len(plain)) == plain
    own = "xxh3-" + "0" * 32
    members = {
        "requires": ["encoded-1"],
        "files": [[own, len(file)], *([digest, len(base)] for digest, base in bases.items())],
        "encoded": [[each["plain"], len(plain), 0, [*bases]]],
    }
    encoding = reader.Encoding(lambda digest: bases.get(digest, file), members, [[each["plain"], len(plain)]])
    assert encoding.plain(each["plain"]) == plain


def test_there_is_a_container_for_each_codec() -> None:
    codecs = set()
    for each in VECTORS["containers"]:
        file = bytes.fromhex(each["file"])
        codecs.add(file[12 + int.from_bytes(file[8:12], "little") + 3])

    assert codecs == {int(codec) for codec in Codec}
