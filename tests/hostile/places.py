"""The store that is spoiled, and what in it can be."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import Best, RetentionPolicy, Store
from ckstore.model.digest import algorithm_named
from tests.hostile.spoiling import spoiled_bytes, spoiled_value
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir, path_in_store

GOOD, SPOILED, COMPACTED = "main@1", "main@2", "old@1"
DOCUMENTS = {
    "manifest": "checkpoints/main/2/manifest.json",
    "manifest of files": "checkpoints/files/3/manifest.json",
    "encoding": "checkpoints/old/1/manifest.json",
    "manifest of a compacted one": "checkpoints/old/1/plain.json",
    "annotations": "checkpoints/main/2/annotations.json",
    "mark": "checkpoints/main/2/damaged.json",
    "pin": "pins/figure.json",
    "config": "config.json",
    "store": "store.json",
}
_DOCUMENT_MOST_BYTES = 16 * 2**20
_FORMATS = ("manifest", "manifest of files", "encoding", "manifest of a compacted one")
_RUNS = ("..", "a b", "\u0660", "x" * 101, ".hidden", "-rf", "a\nb", "é")
_STEPS = ("007", "-1", "1e3", "\u0663", str(2**53 + 1), "9" * 200, "0x10", "2 ", "latest")
_DIRECTORIES = (
    "2.0123456789",
    "2.0123456789.1",
    "2.0123456789.0",
    "2.012345678",
    "2.ABCDEF0123",
    "2." + "0" * 65,
    ".2",
)
_TARGETS = (
    "../checkpoints/main/2",
    "../checkpoints/main/99",
    "../checkpoints/main/2.0123456789",
    "../checkpoints/main/2.0123456789/../2.9876543210",
    "../checkpoints/main/2.0123456789.1",
    "../checkpoints/../../outside/2",
    "/outside",
    "../../outside",
    "../checkpoints/main/2/../1",
    "../checkpoints/main/" + "9" * 3000,
    "../checkpoints//2",
    "loop",
    "../checkpoints/main/\u0663",
)
_TAGS = ("loop", "12", "latest", ".hidden", "a b", "deadbeef", "x" * 200, "\udcff", "best")


def state(seed: int) -> dict[str, Any]:
    """Return what is saved: leaves of every kind."""
    drawn = np.random.default_rng(seed).integers(0, 2**31, 3000, dtype=np.int64)
    shared = np.asarray(drawn[:100], dtype="<f4")
    return {
        "w": drawn,
        "view": {"of": shared, "turned": shared.reshape(10, 10).T},
        "long": "text" * 3000,
        "bytes": bytes(5000),
        "more": [1, 2.5, float("nan"), 2**70, None, True, (np.float32(2.0), {"3": 4})],
    }


def make_store(path: Path) -> None:
    """Make the store that is copied for each case."""
    store = Store.init(path, chunk_bytes=2**20)
    store.save(state(1), step=1, metrics={"loss": 2.0})
    store.save(state(2), step=2, metrics={"loss": 1.0}, metadata={"a": [1, {"b": 2**80}]}, tags=("best",))
    source = path.parent / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "data.bin").write_bytes(bytes(range(256)) * 40)
    (source / "config.json").write_text("{}")
    (source / "link").symlink_to("sub/data.bin")
    store.commit(source, step=3, run="files", times=True)
    for step in (1, 2):
        weights = np.full(9000, step, "<f4")
        store.save({"w": weights, "long": np.arange(300_000, dtype="<u4") % (1000 + step)}, step=step, run="old")
    store.compact(run="old", keep_newest=1)
    store.annotate(SPOILED, metrics={"bleu": 27.0}, note="diverges")
    store.pin(SPOILED, "figure 3", "30d")
    next((path / "pins").iterdir()).rename(path / DOCUMENTS["pin"])
    store.config.retention = RetentionPolicy(keep_last=3, keep_best=Best("loss"), keep_within="7d")
    damage = [{"blob": "", "names": ["w"], "what": "w is damaged"}]
    mark: dict[str, Any] = {"damage": damage, "format": "ckstore-damaged"}
    mark |= {"found": "2026-11-22T10:00:00.000000Z", "version": 1}
    path_in_store(path, DOCUMENTS["mark"]).write_text(json.dumps(mark))
    shutil.rmtree(source)


def spoil_document(store: Path, name: str, draw: random.Random) -> bytes:
    """Spoil a document of the store at `store`; return its bytes.

    Raises:
        ValueError: An earlier attack made it no document, or a file without end.
    """
    path = path_in_store(store, DOCUMENTS[name])
    if path.stat().st_size > _DOCUMENT_MOST_BYTES:
        raise ValueError(name)
    data = path.read_bytes()
    spoiled = spoiled_bytes(data, draw) if draw.random() < 0.25 else _spoiled_document(data, name, draw)
    path.unlink()
    path.write_bytes(spoiled)
    return spoiled


def _spoiled_document(data: bytes, name: str, draw: random.Random) -> bytes:
    document = json.loads(data)
    if name not in _FORMATS:
        return spoiled_value(document, draw).encode("utf-8", "surrogatepass")
    if not isinstance(document, dict) or "manifest" not in document:
        raise ValueError(name)
    body = spoiled_value(document["manifest"], draw).encode("utf-8", "surrogatepass")
    digest = algorithm_named("xxh3_128").digest(body)  # so that what it says is looked at
    return b'{"digest":"' + digest.encode() + b'","manifest":' + body + b"}\n"


def spoil_names(store: Path, draw: random.Random) -> str:
    """Put something under a name in the store that should be another thing, or not there; return what."""
    how = draw.choice(_NAME_TRICKS)
    how(store, draw)
    return how.__name__


def _a_tag(store: Path, draw: random.Random) -> None:
    path = store / "refs" / draw.choice(_TAGS)
    path.unlink(missing_ok=True)
    path.symlink_to(draw.choice(_TARGETS))


def _no_symlink_in_refs(store: Path, draw: random.Random) -> None:
    path = store / "refs" / draw.choice(_TAGS[:5])
    path.mkdir() if draw.random() < 0.5 else path.write_text("../checkpoints/main/2")


def _a_run(store: Path, draw: random.Random) -> None:
    name = draw.choice(_RUNS[1:])
    shutil.copytree(store / "checkpoints" / "main", store / "checkpoints" / name, symlinks=True)


def _a_step(store: Path, draw: random.Random) -> None:
    name = draw.choice(
        (*_STEPS, *_DIRECTORIES, f"{checkpoint_dir(store, 'main', 2).name}.{'9' * draw.choice((1, 40))}")
    )
    shutil.copytree(checkpoint_dir(store, "main", 2), store / "checkpoints/main" / name, symlinks=True)


def _another_place(store: Path, draw: random.Random) -> None:
    checkpoint_dir(store, "main", 2).rename(store / "checkpoints/main" / draw.choice(("5", "99999", *_DIRECTORIES)))


def _a_symlink(store: Path, draw: random.Random) -> None:
    """A directory or a document of the store is a symlink to something outside it."""
    names = ("checkpoints/main/2", "checkpoints/main/2/blobs", "checkpoints/files", "staging", "trash", "refs", "pins")
    path = path_in_store(store, draw.choice((*names, "blobs", *DOCUMENTS.values())))
    outside = store.parent / "outside"
    target = outside / path.name
    path.rename(target)
    path.symlink_to(target if draw.random() < 0.5 else os.path.relpath(target, path.parent))


def _another_kind(store: Path, draw: random.Random) -> None:
    """A document is a directory, a pipe, a socket, or larger than any."""
    path = path_in_store(store, draw.choice(list(DOCUMENTS.values())))
    path.unlink()
    how = draw.randrange(4)
    if how == 0:
        path.mkdir()
    elif how == 1:
        os.mkfifo(path)
    elif how == 2:
        here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)


def _a_blob(store: Path, draw: random.Random) -> None:
    """A blob of a checkpoint is a symlink, a directory, a pipe, or shorter."""
    run, step = draw.choice((("main", 2), ("old", 1)))
    blob = draw.choice(sorted(blobs_dir(store, run, step).iterdir()))
    nbytes = blob.stat().st_size
    blob.unlink()
    how = draw.randrange(4)
    if how == 0:
        (store.parent / "outside" / "secret").write_bytes(bytes(nbytes))
        blob.symlink_to(store.parent / "outside" / "secret")
    elif how == 1:
        blob.mkdir()
    elif how == 2:
        os.mkfifo(blob)
    else:
        blob.write_bytes(bytes(nbytes // 2))


_NAME_TRICKS: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_a_tag,) * 3,
    _no_symlink_in_refs,
    _a_run,
    _a_step,
    _another_place,
    *(_a_symlink,) * 3,
    *(_another_kind,) * 3,
    _a_blob,
)
