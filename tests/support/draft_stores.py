"""Give a store the names that a draft had: checkpoints named after their steps, and tags that name these.

What a draft wrote is in docs/format/v1.md, "Draft names" and "Tags". No process may be at work in the store.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from pathlib import Path

from tests.support.checkpoint_dirs import checkpoint_dirs, step_of_name

ENTRY = "checkpoint-ids"
_TRASHED = re.compile(
    r"(?P<run>[^@]+)@(?P<step>[0-9]+)\.[0-9a-f]{10,}(?:\.[0-9]+)?(?P<rest>\.[0-9a-f]{12}(?:\.undo-[0-9]+)?)"
)
_TAG = re.compile(r"\.\./checkpoints/(?P<run>[^/]+)/\.\./[^/]+/(?P<step>[0-9]+)[^/]*/")


def make_draft(root: Path) -> None:
    """Name everything in a store as a draft did; no step may have two checkpoints."""
    for run in (root / "checkpoints").iterdir():
        for step in sorted(step for path in run.iterdir() if (step := step_of_name(path.name)) is not None):
            name_by_step(root, run.name, step)
    for number, path in enumerate(sorted((root / "refs").iterdir())):
        point_as_draft(path, twice=number % 2 == 0)
    for path in (root / "trash").iterdir():
        if found := _TRASHED.fullmatch(path.name):
            path.rename(path.with_name(f"{found['run']}@{found['step']}{found['rest']}"))
    forget_entry(root)
    for path in root.glob("catalog.db*"):  # that of a draft has another schema
        path.unlink()


def name_by_step(root: Path, run: str, step: int) -> Path:
    """Give the directory of a checkpoint the name that a draft gave it; return it."""
    (path,) = checkpoint_dirs(root, run, step)
    return path.rename(path.with_name(str(step)))


def point_as_draft(tag: Path, *, twice: bool) -> None:
    """Let a tag name the step alone, twice or, as the oldest drafts, once."""
    found = _TAG.match(str(tag.readlink()))
    assert found is not None
    tag.unlink()
    tag.symlink_to(tag_text(found["run"], int(found["step"]), twice=twice))


def tag_text(run: str, step: int, *, twice: bool = True) -> str:
    """Return the text of a tag of a draft."""
    return f"../checkpoints/{run}/../{run}/{step}/../{step}" if twice else f"../checkpoints/{run}/{step}"


def forget_entry(root: Path) -> None:
    """Remove from ``store.json`` what says that checkpoints are named after their ids."""
    path = root / "store.json"
    settings = json.loads(path.read_bytes())
    left = [entry for entry in settings.pop("requires", []) if entry != ENTRY]
    del settings["digest"]
    path.unlink()
    path.write_text(json.dumps({**settings, "requires": left} if left else settings))
    path.chmod(0o444)


def is_converted(root: Path) -> bool:
    """Whether a store says that its checkpoints are named after their ids."""
    return ENTRY in json.loads((root / "store.json").read_bytes()).get("requires", [])


def leave_gap(root: Path, run: str, step: int) -> Path:
    """Leave what a draft left that died while it replaced a checkpoint by two renames, between these."""
    path = root / "staging" / f"{run}@{step}.{uuid.uuid4().hex[:12]}.old"
    return name_by_step(root, run, step).rename(path)


def draft_names(root: Path) -> list[str]:
    """Return the places of directories with the name of a draft, ``RUN/STEP``."""
    runs = [run for run in (root / "checkpoints").iterdir() if run.is_dir()]
    names = itertools.chain.from_iterable(run.iterdir() for run in runs)
    return sorted(f"{path.parent.name}/{path.name}" for path in names if path.name.isdigit())
