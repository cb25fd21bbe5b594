"""Records of a zip archive are cut where zipfile finds them; archives with tricks are opaque."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.containers.cut import cut
from tests.containers.files import Memory, cut_checked, pickle_file, zip_file

_RECORDS = {"one": b"11", "two": b"", "three/": b"", "four": bytes(range(100))}
_CENTRAL, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def wide_zip_file() -> bytes:
    """Return an archive whose sizes are all in zip64 fields."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in _RECORDS.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as record:
                record.write(data)
    return out.getvalue()


def patched(data: bytes, magic: bytes, offset: int, value: int, width: int) -> bytes:
    """Return `data` with a field of its last structure of that kind replaced."""
    at = data.rindex(magic) + offset
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@pytest.mark.property
@given(records=st.dictionaries(names, st.binary(max_size=40), min_size=1), comment=st.binary(max_size=30))
def test_each_stored_record_is_a_segment(records: dict[str, bytes], comment: bytes) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
        archive.comment = comment
    data = out.getvalue()
    wanted = [data for data in records.values() if data]

    found = cut_checked(data, "x.zip")

    assert found.kind == ("zip" if wanted else "")
    assert [data[start:stop] for start, stop in found.segments][1::2] == wanted
    assert found.warnings == ()


def test_sizes_in_zip64_fields_are_followed() -> None:
    data = wide_zip_file()

    found = cut_checked(data)

    assert [data[start:stop] for start, stop in found.segments][1::2] == [data for data in _RECORDS.values() if data]


def test_arrays_of_numpy_are_cut_when_they_are_not_compressed() -> None:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, a=np.arange(100), b=np.ones(3))
    np.savez_compressed(packed, a=np.arange(100), b=np.ones(3))

    found = cut_checked(plain.getvalue(), "x.npz")

    assert (found.kind, len(found.segments)) == ("zip", 5)
    assert plain.getvalue()[slice(*found.segments[1])].endswith(np.arange(100).tobytes())
    assert cut_checked(packed.getvalue(), "x.npz").kind == ""


def test_a_compressed_record_is_left_between_the_others() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", bytes(100))
        archive.writestr("bomb", bytes(10**7), zipfile.ZIP_DEFLATED)
        archive.writestr("c", b"ccc")
    data = out.getvalue()

    found = cut_checked(data)

    assert [data[start:stop] for start, stop in found.segments][1::2] == [bytes(100), b"ccc"]


BASE = zip_file({"first": b"1" * 50, "second": b"2" * 50})
WIDE = wide_zip_file()
TRICKS = {
    "no directory": BASE[: BASE.rindex(_END)],
    "half of the end": BASE[:-3],
    "something before": _LOCAL + b"abc" + BASE,
    "something after": BASE + b"abc",
    "two archives": BASE + BASE,
    "a start at the first record": patched(BASE, _CENTRAL, 42, 0, 4),
    "a start in the first record": patched(BASE, _CENTRAL, 42, BASE.index(b"111"), 4),
    "a start in the directory": patched(BASE, _CENTRAL, 42, BASE.index(_CENTRAL), 4),
    "a start beyond the end": patched(BASE, _CENTRAL, 42, 2**31, 4),
    "data up to the directory and on": patched(patched(BASE, _CENTRAL, 20, 51, 4), _CENTRAL, 24, 51, 4),
    "data beyond the end": patched(BASE, _CENTRAL, 20, 2**32 - 2, 4),
    "zip64 sizes that are not there": patched(BASE, _CENTRAL, 20, 2**32 - 1, 4),
    "another size unpacked": patched(BASE, _CENTRAL, 24, 10**6, 4),
    "another size in the record": patched(BASE, _LOCAL, 18, 49, 4),
    "another name in the record": BASE.replace(b"second2", b"sexond2"),
    "one name twice": BASE.replace(b"second", b"first\0")
    .replace(b"first", b"first\0")
    .replace(b"first\0\0", b"first\0"),
    "another method in the record": patched(BASE, _LOCAL, 8, 8, 2),
    "encrypted says only the record": patched(BASE, _LOCAL, 6, 1, 2),
    "a long field in the record": patched(BASE, _LOCAL, 28, 60_000, 2),
    "a long name": patched(BASE, _CENTRAL, 28, 60_000, 2),
    "a directory elsewhere": patched(BASE, _END, 16, 0, 4),
    "a longer directory": patched(BASE, _END, 12, 10**6, 4),
    "a directory of gigabytes": patched(BASE, _END, 12, 2**32 - 1, 4),
    "more records": patched(patched(BASE, _END, 8, 3, 2), _END, 10, 3, 2),
    "fewer records": patched(patched(BASE, _END, 8, 1, 2), _END, 10, 1, 2),
    "another disk": patched(BASE, _END, 4, 1, 2),
    "a comment that is longer": patched(BASE, _END, 20, 1, 2),
    "zip64 sizes of exabytes": WIDE.replace(struct.pack("<QQ", 100, 100), struct.pack("<QQ", 2**60, 2**60)),
}


@pytest.mark.parametrize("data", TRICKS.values(), ids=TRICKS.keys())
def test_an_archive_with_a_trick_is_opaque(data: bytes) -> None:
    found = cut_checked(data, "model.pt")

    if data is not TRICKS["zip64 sizes of exabytes"]:  # these are in the records alone, which are not asked
        assert found.kind == ""
        assert len(found.warnings) == 1
        assert found.warnings[0].startswith(
            "'model.pt' is not a valid zip file, so it is stored as opaque bytes: the zip "
        )
    assert cut_checked(data, "part-0.distcp").warnings == ()


@pytest.mark.parametrize("count,size_off,start_off", [(2, 0, 0), (2, 1, 0), (2, 0, -1), (2**63, 0, 0), (1, 0, 0)])
def test_a_zip64_end_counts_only_where_it_fits_the_other(count: int, size_off: int, start_off: int) -> None:
    end = BASE.rindex(_END)
    start = BASE.index(_CENTRAL)
    wide = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, end - start + size_off, start
    ) + struct.pack("<4sLQL", b"PK\x06\x07", 0, end + start_off, 1)

    for classic in (BASE[end:], patched(BASE, _END, 16, 2**32 - 1, 4)[end:]):
        found = cut_checked(BASE[:end] + wide + classic)

        assert found.kind == ("zip" if (count, size_off, start_off) == (2, 0, 0) else "")


def test_a_directory_of_too_many_bytes_is_not_read() -> None:
    start = BASE.index(_CENTRAL)
    directory_bytes = 2**28
    end = patched(BASE, _END, 12, directory_bytes, 4)[BASE.rindex(_END) :]

    class Sparse(Memory):
        def read(self, offset: int, length: int) -> bytes:
            assert length < 100_000
            if offset == 0:
                return BASE[:length]
            return end.rjust(length, b"\0") if offset + length == self.nbytes else bytes(length)

    found = cut(Sparse(b"", start + directory_bytes + len(end)), "model.pt")

    assert "wanted at most 134217728 bytes for 1000000 records, found 268435456, 2" in found.warnings[0]


def test_an_empty_archive_and_a_lone_magic_are_opaque() -> None:
    for data in (zip_file({}), _LOCAL, _LOCAL * 20, b"PK"):
        assert cut_checked(data, "x.whl").kind == ""


def test_an_archive_with_one_pickle_is_one_of_torch_only_with_its_version() -> None:
    assert cut_checked(pickle_file(b"N.")).kind == "torch-zip"
    assert cut_checked(zip_file({"a/data.pkl": b"N."})).kind == "zip"
    assert cut_checked(zip_file({"a/data.pkl": b"N.", "b/data.pkl": b"N.", "a/version": b"3"})).kind == "zip"
