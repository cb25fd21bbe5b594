"""What a blob may be decoded with: never itself, by a path of eight at most, through no more than twice its bytes."""

from __future__ import annotations

import time

import pytest

from ckstore.model.manifest.manifest import BlobRecord
from ckstore.ops.compact.encoding_table import EncodingTable, Form


def chain(length: int, file_nbytes: int = 1) -> EncodingTable:
    """Return forms of which blob ``0`` is plain, and each further one is decoded with the one before."""
    forms = EncodingTable()
    forms.keep_plain([BlobRecord("0", 100)])
    for i in range(1, length + 1):
        forms.put(str(i), Form(100, BlobRecord(f"file-{i}", file_nbytes), (str(i - 1),)))
    return forms


def test_a_blob_is_not_decoded_with_itself() -> None:
    forms = chain(2)

    assert not forms.allows("1", 100, 1, ["2"], [])
    assert not forms.may_be_base("2", "1")
    assert forms.allows("new", 100, 1, ["2"], [])


@pytest.mark.parametrize("length, allowed", [(7, True), (8, False)])
def test_a_path_has_eight_encoded_blobs_at_most(length: int, allowed: bool) -> None:
    forms = chain(length)

    assert forms.allows("new", 100, 1, [str(length)], []) is allowed
    assert forms.may_be_base(str(length), "new") is allowed


@pytest.mark.parametrize("file_nbytes, allowed", [(140, True), (141, False)])
def test_a_path_has_twice_the_plain_bytes_at_most(file_nbytes: int, allowed: bool) -> None:
    assert chain(2, 30).allows("new", 100, file_nbytes, ["2"], []) is allowed


def test_many_bases_of_many_bases_are_each_looked_at_once() -> None:
    forms = EncodingTable()
    forms.keep_plain(BlobRecord(f"0-{i}", 100) for i in range(20))
    for level in range(1, 8):
        for i in range(20):
            bases = tuple(f"{level - 1}-{j}" for j in range(20))
            forms.put(f"{level}-{i}", Form(100, BlobRecord(f"file-{level}-{i}", 1), bases))

    begun_s = time.process_time()
    assert forms.may_be_base("7-0", "new")
    assert forms.allows("new", 1000, 1, ["7-0", "7-1"], [])
    assert time.process_time() - begun_s < 5, "20 ** 7 paths take hours"


def test_the_master_of_a_copy_is_read_anyway() -> None:
    forms = chain(1, 150)

    assert not forms.allows("copy", 50, 10, ["1"], [])
    assert forms.allows("copy", 50, 10, ["1"], ["1"])


def test_a_directory_has_every_file_of_a_path() -> None:
    found = chain(2).encoding("checkpoint", [BlobRecord("2", 100)], 0)

    assert [file.digest for file in found.files] == ["0", "file-1", "file-2"]
    assert found.encoded.keys() == {"1", "2"}
