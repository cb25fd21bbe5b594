"""Unpack an archive of `tests/compat/stores`, and compare the store with what its writer noted in ``contents.json``."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckstore import CheckpointInfo, Store
from tests.compat.stores.write_stores import described, files_in, in_memory, of_elements
from tests.format import reader

FOLDER = Path(__file__).with_name("stores")
ARCHIVES = sorted(FOLDER.glob("*/*.tar.xz"))


@dataclass(frozen=True)
class Unpacked:
    """A store, and what it must contain.

    Attributes:
        root: The store.
        remote: The directory of its remote, or None.
        contents: The members of ``contents.json``; see `tests.compat.stores.write_stores.Book`.
    """

    root: Path
    remote: Path | None
    contents: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Unpacked:
        """Return the store in a folder."""
        remote = folder / "remote"
        contents = json.loads((folder / "contents.json").read_bytes())
        return cls(folder / "store", remote if remote.exists() else None, contents)

    @property
    def is_remote_a_store(self) -> bool:
        """Whether the remote is another store, as of a draft."""
        return self.remote is not None and (self.remote / "store.json").exists()

    def facts(self, name: str) -> set[str]:
        """Return the ids that have a property."""
        return {*self.contents["facts"].get(name, ())}

    def remote_blob(self, digest: str) -> bytes:
        """Return a blob of the remote, as the pages say where it is."""
        if self.remote is None:
            raise FileNotFoundError(digest)
        if self.is_remote_a_store:
            return next(self.remote.glob(f"checkpoints/*/*/blobs/{digest}")).read_bytes()
        return reader.Remote(self.remote).blob(digest)


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack an archive into a folder; as root with the owners of its files."""
    owner = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    command = ["tar", "--numeric-owner", owner, "-xpf", "-", "-C", str(folder)]
    subprocess.run(command, input=lzma.decompress(archive.read_bytes()), check=True)
    made = Unpacked.of(folder)
    if made.remote is not None:
        set_remote_address(made)
    return made


def set_remote_address(made: Unpacked) -> None:
    """Write where the remote is now into the settings, as a person does who moved it."""
    path = made.root / "config.json"
    settings = json.loads(path.read_bytes())
    settings.pop("digest", None)
    for entry in settings["remotes"].values():
        entry["target"]["address"] = str(made.remote)
    path.write_text(json.dumps(settings))


def check_equal(found: object, wanted: object, what: str) -> None:
    """Raise AssertionError with both values unless they are equal. Only in pytest would `assert` show them."""
    if found != wanted:
        raise AssertionError(f"{what}: {found} instead of {wanted}")


# ------------------------------------------------------------------ by the pages alone


def check_by_the_pages(made: Unpacked) -> None:
    """A reader that knows only the pages of docs/format finds all that was saved, and each bit of it."""
    seen = reader.Store(made.root, made.remote_blob)
    contents = made.contents
    of_steps = {f"{run}@{step}": one for (run, step), one in seen.of_steps().items()}
    check_equal({name: one.id for name, one in of_steps.items()}, contents["listed"], "listed by the pages")
    by_id = {one.id: one for one in seen.by_id().values()}
    for id, one in by_id.items():
        if id not in made.facts("damaged"):
            one.check_blobs()
            check_equal(one.content(), one.manifest["content"], f"content of {id}")
            check_checkpoint(one, contents["saved"][id])
    tags = {tag: one and one.id for tag in seen.tags() for one in [seen.tagged(tag)]}
    check_equal(tags, contents["tags"], "tags by the pages")
    check_equal({id for id, one in by_id.items() if one.encoding}, made.facts("compacted"), "compacted by the pages")
    remote_only = {id for id, one in by_id.items() if one.is_remote_only()}
    check_equal(remote_only, made.facts("remote_only"), "remote-only by the pages")
    check_equal({id for id, one in by_id.items() if not one.is_whole()}, made.facts("damaged"), "damaged by the pages")


def check_remote_by_the_pages(made: Unpacked, ids: set[str]) -> None:
    """A reader that knows only the pages finds these checkpoints at the remote."""
    assert made.remote is not None
    seen = reader.Store(made.remote) if made.is_remote_a_store else reader.Remote(made.remote)
    found = seen.checkpoints().values()
    check_equal({one.id for one in found}, ids, "at the remote by the pages")
    for one in found:
        one.check_blobs()
        if one.id in made.contents["saved"]:
            check_checkpoint(one, made.contents["saved"][one.id])
    if isinstance(seen, reader.Remote):
        assert made.contents["tags"].items() >= seen.tags().items()


def check_checkpoint(one: reader.Checkpoint, wanted: dict[str, Any]) -> None:
    """Compare what a reader by the page found with what was saved."""
    check_equal((one.manifest["run"], one.manifest["step"]), (wanted["run"], wanted["step"]), one.id)
    if "files" in wanted:
        found = {path: _file_by_the_page(*what) for path, what in one.files().items()}
        check_equal(found, wanted["files"], f"files of {one.id}")
        return
    told = dict(_described_by_the_page(one.state(), ""))
    skipped = tuple(name for name, text in told.items() if text is None)
    values = {
        name: text
        for name, text in wanted["values"].items()
        if name not in skipped and not name.startswith(tuple(f"{skip}/" for skip in skipped))
    }
    check_equal({name: text for name, text in told.items() if text is not None}, values, f"values of {one.id}")


def _file_by_the_page(kind: str, mode: int | None, data: bytes) -> str:
    if kind == "symlink":
        return f"symlink to {os.fsdecode(data)}"
    digest = of_elements("", "", (), data).split()[-1]
    return "directory" if kind == "directory" else f"file {mode:o} {digest}"


def _described_by_the_page(value: Any, name: str, memory: dict[int, str] | None = None) -> Iterator[tuple[str, Any]]:
    """As `described`, for what the reader returns; None for the values that it does not build."""
    memory = {} if memory is None else memory
    items: Any = ()
    match value:
        case reader.Tensor():
            is_shared = value.data and value.kind == "torch"
            shared = in_memory(name, value.storage, memory) if is_shared else ""
            yield name, of_elements(value.kind, value.dtype, value.shape, value.data) + shared
        case reader.Plain() | reader.NumpyScalar() | reader.Parts():
            yield name, None
        case reader.OrderedDict() | dict():
            pairs = value.items if isinstance(value, reader.OrderedDict) else value.items()
            items = [(repr(key), item) for key, item in pairs]
            yield name, f"{type(value).__name__} of {len(items)}"
        case list() | tuple() | deque():
            items = enumerate(value)
            yield name, f"{type(value).__name__} of {len(value)}"
        case _:
            yield from described(value, name)
    for key, item in items:
        yield from _described_by_the_page(item, f"{name}/{key}", memory)


# ------------------------------------------------------------------ by the library


def check_by_the_library(store: Store, made: Unpacked) -> None:
    """The library finds all that was saved, and each bit of it, with tags, pins, notes and what can be restored."""
    contents = made.contents
    infos = {info.id: info for info in store.checkpoints(superseded=True)}
    check_equal({info.name: info.id for info in store.checkpoints()}, contents["listed"], "listed")
    for id, info in infos.items():
        if id not in made.facts("damaged"):
            check_load(store, info, contents["saved"][id])
            check_equal([note.text for note in info.notes], contents["notes"].get(id, []), f"notes of {id}")
    check_equal({tag.name: tag.id for tag in store.tags()}, contents["tags"], "tags")
    check_equal({pin.id: pin.reason for pin in store.pins()}, contents["pins"], "pins")
    check_equal({one.id for one in store.undoable()}, {*contents["undoable"]}, "undoable")
    check_equal({id for id, info in infos.items() if info.compacted}, made.facts("compacted"), "compacted")
    check_equal({id for id, info in infos.items() if info.elsewhere}, made.facts("remote_only"), "remote-only")


def check_damage(store: Store, made: Unpacked) -> None:
    """`Store.verify` finds the damage that was done to the store, and no other."""
    ids = made.facts("damaged")
    damaged = {info.name for info in store.checkpoints(superseded=True) if info.id in ids} if ids else set()
    check_equal({found.name for found in store.verify().damage}, damaged, "damaged")


def check_load(store: Store, ref: str | CheckpointInfo, wanted: dict[str, Any]) -> None:
    """Compare a checkpoint with what was saved."""
    info = ref if isinstance(ref, CheckpointInfo) else store.info(ref)
    check_equal((info.run, info.step), (wanted["run"], wanted["step"]), info.id)
    found, metrics = ({name: repr(value) for name, value in one.items()} for one in (info.metrics, wanted["metrics"]))
    check_equal(found, metrics, f"metrics of {info.id}")
    if "files" not in wanted:
        check_equal(dict(described(store.load(info))), wanted["values"], f"values of {info.id}")
        return
    with tempfile.TemporaryDirectory() as folder:
        store.checkout(info, Path(folder, "out"))
        check_equal(files_in(Path(folder, "out")), wanted["files"], f"files of {info.id}")
