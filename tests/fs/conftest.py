"""These tests are about filesystems: they work on that of the machine, not in memory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path
