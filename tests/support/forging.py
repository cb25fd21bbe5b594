"""Checkpoints as an adversary would make them: any member of the manifest, with digests that fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import render
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import directory_of


def forge_manifest(checkpoint: Path, *, in_place: bool = False, **members: Any) -> str:
    """Write the manifest of a checkpoint again with other members, and rename it to fit; return its id.

    With `in_place` the directory keeps its name, which does not fit the id any more.
    """
    path = checkpoint / "manifest.json"
    manifest, old = parse_manifest(path.read_bytes(), where=str(path))
    manifest_id, data = render(replace(manifest, **members), algorithm_of(old))
    os.unlink(path)
    path.write_bytes(data)
    path.chmod(0o444)
    if not in_place:
        checkpoint.rename(checkpoint.with_name(directory_of(members.get("step", manifest.step), manifest_id)))
    return manifest_id
