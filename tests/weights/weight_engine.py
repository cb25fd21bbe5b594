"""A stand-in for an engine that serves published weights: it pulls versions as the page publish-weights.md says.

It follows the description of SGLang's ``/pull_weights`` (slime 624b824a, docs/en/advanced/delta-weight-sync.md): a copy
of the model on the engine's disk is brought to a version from the newest one with all weights, or from where it is,
and each tensor that a difference changes is compared with its checksum.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from safetensors.torch import load_file

_INDEX = "model.safetensors.index.json"
_MARK = "pulled-version"
_LINK_BYTES = 2**20


class WrongWeights(Exception):
    """A version cannot be applied, or its result is not what it should be."""


class Link:
    """A connection to the directory of versions, over which files are read at most at a rate."""

    def __init__(self, bytes_per_s: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_s = 0.0  # when it has transferred all that was read so far

    def parts(self, path: Path) -> Iterator[bytes]:
        """Yield a file in parts."""
        with path.open("rb") as file:
            while data := file.read(_LINK_BYTES):
                now_s = time.monotonic()
                self._free_s = max(self._free_s, now_s) + len(data) / self.bytes_per_s
                time.sleep(self._free_s - now_s)
                yield data

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        with Path(target).open("wb") as file:
            file.writelines(self.parts(Path(source)))


class WeightEngine:
    """An engine with a local copy of the model."""

    def __init__(self, local: Path, base: Path, link: Link | None = None) -> None:
        self.local = local
        self.base = base
        self.link = link or Link()

    @property
    def version(self) -> int | None:
        """The version of the local copy; 0 is the model that the engine was started with."""
        mark = self.local / _MARK
        return int(mark.read_text()) if mark.exists() else None

    def pull(self, source: Path, target: int) -> None:
        """Update the local copy to a version."""
        have = self.version
        full = target
        while full > (have or 0) and _about(source, full) is not None:
            full -= 1
        if have is None or full > have:
            self._copy(self.base if full == 0 else _place(source, full), full)
            have = full
        for version in range(have + 1, target + 1):
            self._apply(source, version)

    def weights(self) -> dict[str, Any]:
        """Return what the engine would serve after a pull."""
        loaded: dict[str, Any] = {}
        for path in sorted(self.local.glob("*.safetensors")):
            loaded |= load_file(path)
        return loaded

    def _copy(self, source: Path, version: int) -> None:
        shutil.rmtree(self.local, ignore_errors=True)
        try:
            shutil.copytree(source, self.local, copy_function=self.link.copy)
        except shutil.Error as error:
            if source.exists():
                raise
            # The publisher removed the version meanwhile.
            raise FileNotFoundError(source) from error
        (self.local / _MARK).write_text(str(version))

    def _apply(self, source: Path, version: int) -> None:
        about = _about(source, version)
        if about is None or int(about["base_version"]) != self.version or int(about["version"]) != version:
            raise WrongWeights(f"version {version} is {about}, and the local copy is {self.version}")
        if (about["compression_format"], about["checksum_format"]) != ("zstd", "xxh3-128"):
            raise WrongWeights(f"unknown formats: {about}")
        places = {name: place for path in self.local.glob("*.safetensors") for name, place in _tensors(path)}
        index = json.loads((_place(source, version) / _INDEX).read_text())["weight_map"]
        seen = {}
        for path in sorted(_place(source, version).glob("*.safetensors")):
            checksums = _header(path)[0]["__metadata__"]
            content = b"".join(self.link.parts(path))
            for name, (_, start, stop) in _tensors(path):
                seen[name] = path.name
                frame = content[start:stop]
                self._apply_one(name, frame, places[name], about["delta_encoding"], checksums[name])
        if seen != index:
            raise WrongWeights(f"the index of version {version} names other tensors than its files")
        (self.local / _MARK).write_text(str(version))

    def _apply_one(self, name: str, frame: bytes, place: tuple[Path, int, int], encoding: str, checksum: str) -> None:
        path, start, stop = place
        data = np.memmap(path, np.uint8, "r+", start, (stop - start,))
        # Without a size of its own: some engines pass none, so the frame must state it.
        plain = np.frombuffer(zstandard.ZstdDecompressor().decompress(frame), np.uint8)
        if encoding == "xor":
            data ^= plain
        elif encoding == "overwrite":
            count = int(plain[:4].view("<u4")[0])
            data[plain[4 : 4 + 4 * count].view("<u4")] = plain[4 + 4 * count :]
        else:
            raise WrongWeights(f"unknown encoding {encoding}")
        if xxhash.xxh3_128_hexdigest(data.data) != checksum:
            raise WrongWeights(f"{name} has other bytes than its checksum")


def newest_version(source: Path) -> int:
    """Return the number of the newest version, 0 if there is none."""
    return max((int(path.name.removeprefix("weight_v")) for path in source.glob("weight_v*")), default=0)


def _place(source: Path, version: int) -> Path:
    return source / f"weight_v{version:06d}"


def _about(source: Path, version: int) -> dict[str, str] | None:
    """Return the metadata of a version with differences; None for one with all weights, which is any other one."""
    if not _place(source, version).is_dir():
        raise FileNotFoundError(_place(source, version))
    index = _place(source, version) / _INDEX
    about: dict[str, str] = json.loads(index.read_text())["metadata"] if index.exists() else {}
    return about if "delta_encoding" in about else None


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        (nbytes,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(nbytes)), 8 + nbytes


def _tensors(path: Path) -> Iterator[tuple[str, tuple[Path, int, int]]]:
    """Yield each tensor of a file with its place: the file, its first byte, and the byte after its last."""
    header, at = _header(path)
    for name, about in header.items():
        if name != "__metadata__":
            start, stop = about["data_offsets"]
            yield name, (path, at + start, at + stop)
