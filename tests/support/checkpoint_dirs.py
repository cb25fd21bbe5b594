"""Find the directories of published checkpoints, whatever form their names have.

A name is the step alone, or the step, the first hexadecimal digits of the id, and perhaps the generation.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

AnyStore = str | os.PathLike[str]

_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.[0-9a-f]{10,}(?:\.([1-9][0-9]*))?)?")


def step_of_name(name: str) -> int | None:
    """Return the step that the name of a directory gives, or None if no checkpoint has such a name."""
    matched = _NAME.fullmatch(name)
    return int(matched[1]) if matched else None


def checkpoint_dirs(store: AnyStore, run: str, step: int | str) -> list[Path]:
    """Return the directories of all checkpoints of a step, the newest last."""
    place = Path(store, "checkpoints", run)
    found = [place / name for name in _names(place) if step_of_name(name) == int(step)]
    return sorted(found, key=_order) if len(found) > 1 else found


def checkpoint_dir(store: AnyStore, run: str, step: int | str) -> Path:
    """Return the directory of the newest checkpoint of a step; one that does not exist if the step has none."""
    return next(reversed(checkpoint_dirs(store, run, step)), Path(store, "checkpoints", run, str(step)))


def dir_of_id(store: AnyStore, run: str, step: int | str, digest: str) -> Path:
    """Return the directory of the newest form of the checkpoint with this id; if none has it, of the newest one."""
    found = checkpoint_dirs(store, run, step)
    own = [path for path in found if len(found) > 1 and _order_in_manifest(path)[2] == digest]
    return own[-1] if own else checkpoint_dir(store, run, step)


def blobs_dir(store: AnyStore, run: str, step: int | str) -> Path:
    """Return the directory of the blobs of the newest checkpoint of a step."""
    return checkpoint_dir(store, run, step) / "blobs"


def path_in_store(store: AnyStore, name: str) -> Path:
    """Return the path of `name`, in which ``checkpoints/RUN/STEP`` stands for the newest checkpoint of that step."""
    parts = name.split("/")
    if len(parts) < 3 or parts[0] != "checkpoints" or not re.fullmatch("[0-9]+", parts[2]):
        return Path(store, name)
    return checkpoint_dir(store, parts[1], parts[2]).joinpath(*parts[3:])


def name_in_store(store: AnyStore, run: str, step: int | str) -> str:
    """Return the path of the newest checkpoint of a step, relative to the store."""
    return checkpoint_dir(store, run, step).relative_to(store).as_posix()


def step_names(store: AnyStore, run: str) -> set[int]:
    """Return the steps of which a run has a directory."""
    steps = map(step_of_name, _names(Path(store, "checkpoints", run)))
    return {step for step in steps if step is not None}


def _names(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:  # of a run that is not there, or cannot be listed, its user is told by the next call
        return []


def _order(path: Path) -> tuple[int, str, str, int]:
    generation = _NAME.fullmatch(path.name)
    sequence, created, digest = _order_in_manifest(path)
    return sequence, created, digest, int((generation and generation[2]) or 0)


def _order_in_manifest(path: Path) -> tuple[int, str, str]:
    """Return the sequence, the time and the id that a manifest has, or values below all others if it is unreadable."""
    try:
        if not (path / "manifest.json").is_file():  # a pipe would be waited for
            return -1, "", ""
        document: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
        if "checkpoint" in document["manifest"]:  # a compacted checkpoint
            document = json.loads((path / "plain.json").read_bytes())
        manifest = document["manifest"]
        return int(manifest["sequence"]), str(manifest["created"]), str(document["digest"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return -1, "", ""
