"""What was written is compared with what the disk has."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import SaveFailed
from ckstore.fs.direct import check_on_disk
from ckstore.fs.files import create_blob

MIB = 2**20
_SIZES = [1, 511, 4096, 4097, 4 * MIB, 4 * MIB + 1, 9 * MIB + 5]


@pytest.mark.parametrize("nbytes", _SIZES)
@pytest.mark.parametrize("direct", [True, False])
def test_what_is_there_as_it_was_written_is_found_right(
    nbytes: int, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr("os.open", _without_direct(os.open))
    path = tmp_path / "blob"
    data = os.urandom(nbytes)
    create_blob(path, memoryview(data))

    check_on_disk(path, memoryview(data))


def _without_direct(original: Any) -> Any:
    def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return original(path, flags, *args, **kwargs)

    return call


@pytest.mark.property
@given(where=st.floats(0, 1, exclude_max=True), nbytes=st.sampled_from([1, 5000, 5 * MIB]), bit=st.integers(0, 7))
def test_one_other_bit_is_found(where: float, nbytes: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("disk") / "blob"
    data = bytearray(nbytes)
    data[int(where * nbytes)] ^= 1 << bit
    path.write_bytes(data)

    with pytest.raises(SaveFailed, match="the disk returns other bytes"):
        check_on_disk(path, memoryview(bytes(nbytes)))
    path.unlink()


@pytest.mark.parametrize("there", [b"", b"12", b"1234"])
def test_a_file_of_another_size_is_found(there: bytes, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(there)

    with pytest.raises(SaveFailed, match="the disk returns other bytes"):
        check_on_disk(path, memoryview(b"123"))


def test_what_cannot_be_read_is_told_as_the_disk_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"123")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.preadv", fail)

    with pytest.raises(SaveFailed, match="the disk cannot read it"):
        check_on_disk(path, memoryview(b"123"))
