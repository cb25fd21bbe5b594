"""What the tests of hostile stores share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user outside every store."""
    path = tmp_path / "home" / "thesis.tex"
    path.parent.mkdir()
    path.write_text("not yours")
    return path


@pytest.fixture(scope="module")
def room(place: Path) -> Iterator[Path]:
    """A folder for what the stranger writes; as root on a small filesystem: what a manifest claims does not fit."""
    if os.geteuid() != 0:
        yield place
        return
    path = place / "room"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=755", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)
