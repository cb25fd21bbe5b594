"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return `path` with a leading ``~`` or ``~user`` replaced by that home, as a shell does it.

    For a directory that is really called so give an absolute path.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - that of a Path raises for a user who is unknown
