"""Any bytes are cut without an error, without a gap and in little memory."""

from __future__ import annotations

import io
import itertools
import json
import random
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.containers.cut import Cut, cut
from tests.containers.files import (
    Memory,
    bytes_of,
    cut_checked,
    header_of,
    pickle_file,
    safetensors_file,
    torch_file,
    zip_file,
)
from tests.support.requirements import CRASH_FULL


@pytest.mark.property
@given(data=st.binary(max_size=300), head=st.sampled_from([b"", b"PK\x03\x04", b"\x10" + bytes(7) + b"{", b"\x80\x02"]))
def test_any_bytes_are_cut_without_gap_or_overlap(data: bytes, head: bytes) -> None:
    cut_checked(head + data)


def test_an_empty_file_has_no_segments() -> None:
    assert cut_checked(b"", "model.pt") == Cut("", (), (), ())


def test_errors_of_the_reader_come_through() -> None:
    good = safetensors_file({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"a")
    for data in (good, torch_file({"a": torch.ones(2)})):
        for nbytes in (len(data) + 1, len(data) + 70_000):
            with pytest.raises(EOFError):
                cut(Memory(data[:9], nbytes), "x")


def test_a_tensor_is_the_same_bytes_in_a_safetensors_file_and_in_a_file_of_torch() -> None:
    state = {"w": torch.randn(30, 7), "b": torch.arange(5, dtype=torch.int16), "s": torch.tensor(2.0)}
    files = [
        safetensors.torch.save(state),
        torch_file(state),
        torch_file({"model": state, "step": 3}),
    ]
    pieces = []
    for data in files:
        found = cut_checked(data)
        tensors = {tensor.name.removeprefix("model."): tensor for tensor in found.tensors}
        assert {name: tensor.shape for name, tensor in tensors.items()} == {"w": (30, 7), "b": (5,), "s": ()}
        pieces.append({name: data[slice(*found.segments[tensor.segment])] for name, tensor in tensors.items()})
        assert all(pieces[-1][name] == bytes_of(data, found, tensor) for name, tensor in tensors.items())

    assert pieces[0] == pieces[1] == pieces[2]


CLAIMS = {
    "a header of 10^18 bytes": (10**18).to_bytes(8, "little") + b'{"a":1}' * 10,
    "a header of 10^18 bytes in a long file": (10**18).to_bytes(8, "little") + b"{" + bytes(10_000),
    "a shape of 10^18": safetensors_file({"a": {"dtype": "U8", "shape": [10**18], "data_offsets": [0, 10**18]}}),
    "records of 2^60 bytes": zip_file({"a": b"a"}).replace(b"\1\0\0\0\1\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    "a text of 2^62 bytes": pickle_file(b"\x8d" + (2**62).to_bytes(8, "little") + b"abc."),
    "a bomb of zeros": zip_file({"a/data.pkl": bytes(10**7), "a/version": b"3"}, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("data", CLAIMS.values(), ids=CLAIMS.keys())
def test_what_a_file_claims_costs_no_memory(data: bytes) -> None:
    file = Memory(data)
    cut(file, "model.safetensors")  # imports and tables, once
    tracemalloc.start()
    try:
        cut(file, "model.safetensors")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**20
    assert file.longest_read <= max(len(data), 2**17)


# ---------------------------------------------------------------------------------- damaged files


def _bases() -> list[bytes]:
    base = torch.arange(6.0)
    state = {"a": {"w": base.view(2, 3).t(), "v": base[2:4]}, "b": [torch.ones(3, dtype=torch.float8_e5m2)], "n": 3}
    arrays = io.BytesIO()
    np.savez(arrays, x=np.arange(4), y=np.ones(2))
    return [
        safetensors.torch.save(
            {"a": base, "b": torch.ones(2, 2, dtype=torch.bfloat16), "e": torch.ones(0)}, {"k": "v"}
        ),
        torch_file(state),
        torch_file(state, pickle_protocol=4),
        arrays.getvalue(),
    ]


BASES = _bases()
Way = Callable[[bytes, random.Random], bytes]
_NUMBERS = [0, 1, 2, 7, 8, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**18]


def flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        out[rng.randrange(len(out))] = rng.choice([0, 1, 34, 92, 123, 255, rng.randrange(256)])
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] if rng.random() < 0.8 else data[rng.randrange(len(data)) :]


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    piece: bytes = rng.choice([b"\0", b"PK\x05\x06", b"[" * 2000, b"(" * 500, rng.randbytes(8)])
    return data[:at] + piece + data[at:]


def copy_within(data: bytes, rng: random.Random) -> bytes:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 80)]
    return data[:at] + piece + data[at + rng.choice([0, len(piece)]) :]


def splice(data: bytes, rng: random.Random) -> bytes:
    other = rng.choice(BASES)
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def renumber(data: bytes, rng: random.Random) -> bytes:
    """Overwrite a number after a magic (or the length at the start) with an extreme one."""
    magic = rng.choice([b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b""])
    places = [at for at in range(len(data)) if data.startswith(magic, at)] if magic else [0]
    if not places:
        return data
    width = rng.choice([2, 4, 8])
    at = min(rng.choice(places) + len(magic) + rng.choice(range(0, 42, 2)) * bool(magic), len(data) - width)
    near = int.from_bytes(data[at : at + width], "little") + rng.choice([-1, 1, 8])
    number = rng.choice([*_NUMBERS, near]) % (1 << 8 * width)
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def rewrite_header(data: bytes, rng: random.Random) -> bytes:
    """Return the safetensors file with its header changed and its length put right."""
    data = BASES[0]
    header = header_of(data)
    end = 8 + int.from_bytes(data[:8], "little")
    entry = header[rng.choice(["a", "b", "e"])]
    what = rng.randrange(6)
    if what == 0:
        entry["data_offsets"] = [rng.choice([*_NUMBERS, -1, 24, 32]) for _ in range(2)]
    elif what == 1:
        entry["shape"] = [rng.choice([*_NUMBERS, -1, 3, True, 1.0, "1", None]) for _ in range(rng.randrange(70))]
    elif what == 2:
        entry["dtype"] = rng.choice(["F32", "F64", "F4", "F6_E2M3", "I16", "U8", "", 3, None, ["F32"]])
    elif what == 3:
        header[rng.choice(["c", "__metadata__", "a"])] = rng.choice([entry, {}, {"k": 1}, [], None, 1])
    text = json.dumps(header).encode()
    if what == 4:
        text = flip(text, rng)
    elif what == 5:
        text = copy_within(text, rng)
    return safetensors_file(text, data[end:] + bytes(rng.choice([0, 0, 0, 1, 8])))


def rewrite_pickle(data: bytes, rng: random.Random) -> bytes:
    """Return an archive of torch.save with a damaged pickle in sound records."""
    with zipfile.ZipFile(io.BytesIO(rng.choice(BASES[1:3]))) as archive:
        records = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    pickled = records["data.pkl"]
    for _ in range(rng.randrange(1, 4)):
        way: Way = rng.choice([flip, insert, copy_within])
        pickled = way(pickled, rng)
    storages = {name.removeprefix("data/"): data for name, data in records.items() if name.startswith("data/")}
    return pickle_file(pickled, storages)


WAYS: list[Way] = [
    flip,
    truncate,
    insert,
    copy_within,
    splice,
    renumber,
    renumber,
    rewrite_header,
    rewrite_pickle,
]


def test_damaged_and_forged_files_are_cut_or_opaque_and_never_an_error() -> None:
    count = 20_000 if CRASH_FULL else 720
    rng = random.Random(42)
    kinds: Counter[str] = Counter()
    named = 0
    for base, way in itertools.islice(itertools.cycle(itertools.product(BASES, WAYS)), count):
        data = way(base, rng)
        if rng.random() < 0.2 and data:
            data = rng.choice(WAYS)(data, rng)
        found = cut_checked(data, rng.choice(["a.safetensors", "a.pt", "a"]))
        kinds[found.kind] += 1
        named += bool(found.tensors)

    print(f"{count} generated files: {dict(kinds)}, {named} with named tensors")
    assert set(kinds) == {"safetensors", "torch-zip", "zip", ""}
    assert named > count // 20


def test_bases_of_the_damaged_files_are_whole() -> None:
    found = [cut_checked(data) for data in BASES]

    assert [one.kind for one in found] == ["safetensors", "torch-zip", "torch-zip", "zip"]
    assert [len(one.tensors) for one in found] == [3, 3, 3, 0]
