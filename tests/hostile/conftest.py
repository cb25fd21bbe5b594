"""What the tests of hostile stores share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user outside every store."""
    path = tmp_path / "home" / "thesis.tex"
    path.parent.mkdir()
    path.write_text("not yours")
    return path
