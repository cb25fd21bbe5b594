"""The file of an encoded blob: what was encoded comes back, and a hostile one is refused."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore.codecs import container, zstd
from ckstore.codecs.casts import predicted
from ckstore.codecs.container import HEAD_BYTES, Header, Run, header_bytes
from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import DamagedBlob

_PLAIN, _BASE = (f"xxh3-{digit * 32}" for digit in "ab")
_MOST = 2**31


def decode_all(data: bytes, read_base: container.ReadBase) -> bytes:
    """Return the plain bytes of a container."""
    return bytes(container.decode_blob(data, read_base, where="it", most_bytes=_MOST))


def reader(base: bytes) -> Callable[[str, int, int], bytes]:
    return lambda digest, start, nbytes: base[start : start + nbytes]


def weights(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")


def two_runs() -> tuple[bytes, Header, bytes]:
    """Return a blob of two runs with a base, its header, and the bytes of the base."""
    base = weights(TILE_BYTES // 2)
    near = base + (np.random.default_rng(1).random(len(base)) < 0.01).astype("<f4") * np.float32(1e-3)
    plain = near[1000:].tobytes() + b"odd"
    runs = (Run(len(plain) - 3, 4, "same", 0, 4000), Run(3, 1))
    return plain, Header(_PLAIN, len(plain), (_BASE,), runs), base.tobytes()


def test_a_blob_of_several_runs_and_tiles_comes_back() -> None:
    plain, header, base = two_runs()

    data = container.encode_blob(plain, header, reader(base))

    assert decode_all(data, reader(base)) == plain
    assert len(data) < len(plain) / 8


def test_noise_grows_by_no_more_than_the_head() -> None:
    noise = np.random.default_rng(0).bytes(3 * TILE_BYTES + 8)

    data = container.encode_blob(noise, Header(_PLAIN, len(noise), (), (Run(len(noise), 8),)), reader(b""))

    assert len(data) <= len(noise) + 300


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_a_copy_in_half_the_width_takes_no_bytes(kind: Any) -> None:
    torch = pytest.importorskip("torch")
    masters = weights(TILE_BYTES)
    masters[:8] = [0, -0.0, np.inf, -np.inf, 1e-45, 3e38, 65520, 1e-8]
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    copy = torch.from_numpy(masters).to(dtype).view(torch.int16).numpy().tobytes()

    data = container.encode_blob(
        copy, Header(_PLAIN, len(copy), (_BASE,), (Run(len(copy), 2, kind, 0, 0),)), reader(masters.tobytes())
    )

    assert bytes(predicted(kind, masters.tobytes())) == copy
    assert len(data) < 300
    assert decode_all(data, reader(masters.tobytes())) == copy


@pytest.mark.property
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_casts_are_those_of_torch(bits: list[int]) -> None:
    torch = pytest.importorskip("torch")
    masters = np.array(bits, "<u4")
    values = torch.from_numpy(masters.view("<f4").copy())
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        wanted = values.to(dtype).view(torch.int16).numpy().view("<u2")
        found = np.frombuffer(predicted(kind, masters.tobytes()), "<u2")  # type: ignore[arg-type]
        # A NaN may keep other bits in torch: it is stored as a difference then.
        assert ((found == wanted) | np.isnan(masters.view("<f4"))).all()


_SIZES = st.sampled_from([0, 1, 8, 4096, TILE_BYTES, TILE_BYTES + 8, 2**31, 2**60, -1])
_BASES = st.integers(-1, 2)
_RUNS = st.lists(
    st.one_of(
        st.tuples(_SIZES, st.sampled_from([1, 2, 4, 8, 3])).map(list),
        st.tuples(
            _SIZES, st.sampled_from([2, 4]), st.sampled_from(["same", "bf16", "x"]), st.integers(-1, 2), _SIZES
        ).map(list),
        st.none(),
    ),
    max_size=3,
)


@pytest.mark.property
@given(
    runs=_RUNS,
    nbytes=st.none() | _SIZES,
    tiles=st.lists(
        st.tuples(st.integers(0, 6), st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(zstd.compress))),
        max_size=4,
    ),
    tail=st.binary(max_size=3),
)
def test_a_drawn_container_gives_one_error_or_as_many_bytes_as_it_says(
    runs: list[Any], nbytes: int | None, tiles: list[tuple[int, bytes]], tail: bytes
) -> None:
    said = [run[0] for run in runs if run]
    members = {"bases": [_BASE], "bytes": sum(said) if nbytes is None else nbytes, "plain": _PLAIN, "runs": runs}
    head = json.dumps(members).encode()
    table = b"".join((codec << 24 | len(data)).to_bytes(4, "little") for codec, data in tiles)
    stored = b"".join(data for _, data in tiles)
    file = container.MAGIC + len(head).to_bytes(4, "little") + head + table + stored + tail
    base = bytes(2 * TILE_BYTES)
    start = time.process_time()

    with contextlib.suppress(DamagedBlob):
        assert len(decode_all(file, reader(base))) == sum(said)

    assert time.process_time() - start < 2


def _with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    first = HEAD_BYTES + header_bytes(data[:HEAD_BYTES])
    members = json.loads(data[HEAD_BYTES:first])
    change(members)
    head = json.dumps(members).encode()
    return data[:8] + len(head).to_bytes(4, "little") + head + data[first:]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(bytes=2**40),
        lambda m: m.update(bytes=m["bytes"] + 1),
        lambda m: m.update(runs=[[2**31, 1]], bytes=2**31),
        lambda m: m.update(runs=[[4, 4]] * 10, bytes=40),
        lambda m: m.update(runs=7),
        lambda m: m["runs"].append([0, 1]),
        lambda m: m["runs"][0].__setitem__(1, 3),
        lambda m: m["runs"][0].__setitem__(3, 1),
        lambda m: m["runs"][0].__setitem__(4, -1),
        lambda m: m["runs"][0].__setitem__(2, "bf16"),
        lambda m: m.update(bases=["../../etc/passwd"]),
        lambda m: m.update(bases=[_BASE] * 300),
        lambda m: m.update(plain="x"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    plain, header, base = two_runs()
    data = container.encode_blob(plain, header, reader(base))
    start = time.process_time()

    with pytest.raises(DamagedBlob):
        decode_all(_with_header(data, change), reader(base))

    assert time.process_time() - start < 5


@pytest.mark.property
@settings(max_examples=200)
@given(at=st.integers(0), byte=st.integers(1, 255), cut=st.booleans())
def test_a_flipped_byte_or_a_cut_gives_one_error_or_other_bytes(at: int, byte: int, cut: bool) -> None:
    base = weights(300).tobytes()
    plain = weights(300, 1).tobytes()
    header = Header(_PLAIN, len(plain), (_BASE,), (Run(600, 4, "same", 0, 0), Run(600, 2)))
    data = bytearray(container.encode_blob(plain, header, reader(base)))
    at %= len(data)
    data[at] ^= byte
    try:
        decode_all(bytes(data[:at] if cut else data), reader(base))
    except DamagedBlob:
        return
    assert not cut
