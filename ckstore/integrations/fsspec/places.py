"""Paths of the door: ``/path/to/store/RUN/CHECKPOINT/FILE``, and what each leads to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ckstore.errors import BadInput, StoreNotFound
from ckstore.fs.dirfd_stat import resolved
from ckstore.model.manifest.committed_files import FileSummary, followed
from ckstore.model.names import STEP_PATTERN, check_own_run, check_step
from ckstore.ops.save.gather import step_in_name

PREFIX = "ckstore://"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a path leads; what it does not go down to is empty."""

    store: Path  # directory of the store, without symlinks on the way
    written: str  # the same as it stands in the path
    run: str = ""  # a run in it
    name: str = ""  # a checkpoint of the run: a step, a name with a step in it, or what else may stand after ``RUN@``
    path: str = ""  # of a file or directory in the checkpoint

    @property
    def step(self) -> int | None:
        """The step that the name is, or has in it as trainers write it; None: there is none."""
        if STEP_PATTERN.match(self.name):
            return int(self.name)
        return step_in_name([Path(self.name)]) if self.name else None

    def to_write(self) -> tuple[Path, str, int]:
        """Return store, run and step to write to."""
        if not self.path:
            msg = f"{self} is no file in a checkpoint"
            example = f"{PREFIX}{self.written}/{self.run or 'RUN'}/{self.name or 'STEP'}/FILE"
            raise BadInput(msg, hint=f"name a file in it, also if it is the only one: {example}")
        if self.step is None:
            msg = f"{self.name!r} in {self} is no step, and what is written needs one"
            raise BadInput(msg, hint="name it 500, step-500 or checkpoint-500")
        return self.store, check_own_run(self.run), check_step(self.step)

    def __str__(self) -> str:
        return "/".join(filter(None, (f"{PREFIX}{self.written}", self.run, self.name, self.path)))


def stripped(path: str | os.PathLike[str]) -> str:
    """Return the absolute path that a URL of the door has; a relative one is relative to the working directory."""
    text = os.path.abspath(os.path.expanduser(os.fspath(path).removeprefix(PREFIX)))
    return f"/{text.lstrip('/')}"


def place_of(path: str | os.PathLike[str]) -> StoreLocation:
    """Return what a path leads to: the store is the first directory on the way that is one."""
    whole = PurePosixPath(stripped(path))
    # From the root down: a file store.json inside a committed checkpoint must not be taken for a store.
    for store in (*reversed(whole.parents), whole):
        if os.path.lexists(f"{store}/store.json"):
            run, name, *inner = (*whole.relative_to(store).parts, "", "")
            return StoreLocation(resolved(store), str(store), run, name, "/".join(filter(None, inner)))
    msg = f"there is no store on the way to {whole}"
    raise StoreNotFound(msg, hint="ckstore:///path/to/store/RUN/STEP/FILE; ckstore init PATH makes a store")


def entry(name: str, nbytes: int | None = None, **more: Any) -> dict[str, Any]:
    """Return the entry of fsspec for a file; for a directory if it has no size."""
    kind = "directory" if nbytes is None else "file"
    return {"name": name, "size": 0 if nbytes is None else nbytes, "type": kind, **more}


def entries(files: list[FileSummary], top: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the entries of fsspec for everything in a checkpoint whose path is `top`: path in it -> entry."""
    by_path = {file.path: file for file in files}
    found = {"": entry(top, **more)}
    for file in files:
        for parent in reversed(PurePosixPath(file.path).parents[:-1]):
            found.setdefault(str(parent), entry(f"{top}/{parent}", **more))
        where = f"{top}/{file.path}"
        if file.kind == "directory":
            found[file.path] = entry(where, mode=file.mode, **more)
        elif file.kind == "file":
            found[file.path] = entry(where, file.nbytes, mode=file.mode, **more)
        else:
            end = by_path.get(followed(by_path, file.path) or "")
            as_link = {"islink": True, "destination": file.target, **more}
            is_file = end is not None and end.kind == "file"
            found[file.path] = entry(where, end.nbytes if end is not None and is_file else 0, **as_link)
            if not is_file:  # nothing, or a directory: as it is not to be gone into, it is neither
                found[file.path]["type"] = "link"
    return found
