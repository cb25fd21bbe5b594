"""Make a store look as drafts of ckstore left it: checkpoints are named after their steps alone."""

from __future__ import annotations

import json
from pathlib import Path

from ckstore.model.seal import seal
from ckstore.model.settings.settings import CHECKPOINT_IDS
from tests.support.checkpoint_dirs import step_of_name


def make_draft(store: Path, *, replacing: tuple[str, int] | None = None) -> None:
    """Give every checkpoint, every tag and ``store.json`` of a store that is not open their form of a draft.

    Args:
        store: It has one checkpoint of each step.
        replacing: The run and the step of a checkpoint that a dead process was replacing by two renames: it lies in
            ``staging/``, and nothing has taken its place.
    """
    for place in store.glob("checkpoints/*/*"):
        place.rename(place.with_name(str(step_of_name(place.name))))
    if replacing is not None:
        run, step = replacing
        (store / "checkpoints" / run / str(step)).rename(store / "staging" / f"{run}@{step}.0123456789ab.old")
    for tag in store.glob("refs/*"):
        run, name = tag.readlink().parts[2], tag.readlink().name
        step = step_of_name(name)
        tag.unlink()
        tag.symlink_to(f"../checkpoints/{run}/../{run}/{step}/../{step}")
    _rewrite_settings(store / "store.json")


def _rewrite_settings(path: Path) -> None:
    members = json.loads(path.read_bytes())
    members["requires"] = [entry for entry in members["requires"] if entry != CHECKPOINT_IDS]
    path.unlink()  # it may be read only
    path.write_bytes(seal(json.dumps(members).encode()))
    path.chmod(0o444)
