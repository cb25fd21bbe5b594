#!/bin/sh
# zstandard 0.25.0 with fsspec 2026.9.0: reading a truncated .zst file returns a part of the data, without an error.
#
# `zstandard.open(path).read()` and `stream_reader` end at the end of the file, also in the middle of a frame. Neither the size of the
# content, which is in the header of the frame, nor its checksum is compared. fsspec with compression="zstd" or "infer" reads in this way
# before Python 3.14, if backports.zstd is not installed. So a checkpoint, shard or log whose upload or copy was cut off is read as a
# shorter one. gzip, xz, bz2 and lz4 raise EOFError for this. `zstandard.decompress` of the whole file raises an error. Compare the
# length, or decompress in one call.
#
# Guess: an error, as for the other formats.
# Seen, 2026-11-30: half of a file of 200,000 float64 numbers with checksum and size is read as fewer, correct numbers by all three ways
# to read. gzip, xz, bz2 and lz4 raise EOFError, also in fsspec.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'zstandard==0.25.0' 'fsspec==2026.9.0' 'lz4==4.4.5' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import bz2
import gzip
import lzma
import sys

import fsspec
import lz4.frame
import numpy as np
import zstandard

data = np.random.default_rng(0).standard_normal(200_000).tobytes()


def streamed(path):
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        return reader.read()


def whole(path):
    with open(path, "rb") as file:
        return zstandard.decompress(file.read())


def opened(module):
    def read(path):
        with module.open(path, "rb") as file:
            return file.read()

    return read


def by_fsspec(path):
    with fsspec.open(path, "rb", compression="infer") as file:
        return file.read()


def outcome(read, path):
    try:
        part = read(path)
    except (EOFError, zstandard.ZstdError) as error:
        return type(error).__name__
    assert data.startswith(part)
    return len(part) // 8


print("zstandard", zstandard.__version__, "fsspec", fsspec.__version__)
stream = zstandard.ZstdCompressor(write_checksum=True).compress(data)
parameters = zstandard.get_frame_parameters(stream)
print("size in the header:", parameters.content_size // 8, "checksum:", parameters.has_checksum)
assert parameters.content_size == len(data) and parameters.has_checksum

path = sys.argv[1] + "/weights.zst"
for length in (len(stream), len(stream) // 2):
    with open(path, "wb") as file:
        file.write(stream[:length])
    readers = {"zstandard.open": opened(zstandard), "stream_reader": streamed, "decompress": whole}
    if sys.version_info < (3, 14):  # fsspec uses the standard library from 3.14 on
        readers["fsspec"] = by_fsspec
    seen = {name: outcome(read, path) for name, read in readers.items()}
    print(f"{length} of {len(stream)} bytes: numbers read, or error:", seen)
    if length == len(stream):
        assert set(seen.values()) == {200_000}
    else:
        error = seen.pop("decompress")
        assert error == "ZstdError"
        assert all(isinstance(count, int) and 50_000 < count < 110_000 for count in seen.values())

for module, suffix in ((gzip, "gz"), (lzma, "xz"), (bz2, "bz2"), (lz4.frame, "lz4")):
    path, stream = f"{sys.argv[1]}/weights.{suffix}", module.compress(data)
    with open(path, "wb") as file:
        file.write(stream[: len(stream) // 2])
    seen = {"its own open": outcome(opened(module), path), "fsspec": outcome(by_fsspec, path)}
    print(suffix, seen)
    assert set(seen.values()) == {"EOFError"}
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
