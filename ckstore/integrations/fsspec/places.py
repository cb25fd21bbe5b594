"""Parse the paths of the filesystem, ``/path/to/store/RUN/CHECKPOINT/FILE``."""

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
    """The components of a path. Components that the path does not contain are empty."""

    store: Path  # directory of the store, with symlinks resolved
    written: str  # directory of the store as in the path
    run: str = ""  # name of the run
    name: str = ""  # checkpoint of the run: a step, a name with a step in it, or another ref that may follow ``RUN@``
    path: str = ""  # path of a file or directory in the checkpoint

    @property
    def step(self) -> int | None:
        """The step in the name, such as 500 in ``500`` or ``checkpoint-500``, or None."""
        if STEP_PATTERN.match(self.name):
            return int(self.name)
        return step_in_name([Path(self.name)]) if self.name else None

    def to_write(self) -> tuple[Path, str, int]:
        """Return the store, run and step to write to."""
        if not self.path:
            msg = f"{self} is not a file in a checkpoint"
            example = f"{PREFIX}{self.written}/{self.run or 'RUN'}/{self.name or 'STEP'}/FILE"
            raise BadInput(msg, hint=f"name a file in it, even if there is only one: {example}")
        if self.step is None:
            msg = f"{self.name!r} in {self} is not a step, and a written checkpoint needs one"
            raise BadInput(msg, hint="name it 500, step-500 or checkpoint-500")
        return self.store, check_own_run(self.run), check_step(self.step)

    def __str__(self) -> str:
        return "/".join(filter(None, (f"{PREFIX}{self.written}", self.run, self.name, self.path)))


def stripped(path: str | os.PathLike[str]) -> str:
    """Return the absolute path in a URL of the filesystem. Relative paths are relative to the working directory."""
    text = os.path.abspath(os.path.expanduser(os.fspath(path).removeprefix(PREFIX)))
    return f"/{text.lstrip('/')}"


def place_of(path: str | os.PathLike[str]) -> StoreLocation:
    """Return the components of a path. The store is the topmost directory in the path that is a store."""
    whole = PurePosixPath(stripped(path))
    # Search from the root down, because a file store.json inside a committed checkpoint does not mark a store.
    for store in (*reversed(whole.parents), whole):
        if os.path.lexists(f"{store}/store.json"):
            run, name, *inner = (*whole.relative_to(store).parts, "", "")
            return StoreLocation(resolved(store), str(store), run, name, "/".join(filter(None, inner)))
    msg = f"no directory in the path {whole} is a store"
    raise StoreNotFound(msg, hint="ckstore:///path/to/store/RUN/STEP/FILE; ckstore init PATH makes a store")


def entry(name: str, nbytes: int | None = None, **more: Any) -> dict[str, Any]:
    """Return the fsspec entry of a file, or of a directory if no size is given."""
    kind = "directory" if nbytes is None else "file"
    return {"name": name, "size": 0 if nbytes is None else nbytes, "type": kind, **more}


def entries(files: list[FileSummary], top: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the fsspec entries of all files and directories of the checkpoint at `top`, by path relative to it."""
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
            if not is_file:  # a dangling symlink, or one to a directory, which is not followed
                found[file.path]["type"] = "link"
    return found
