"""Where checkout and export may write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckstore.errors import BadInput

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout


def outside_store(layout: Layout, destination: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a destination."""
    path = Path(os.path.abspath(destination))
    # The parent resolved, the name as given: a symlink at the destination itself would be replaced, not followed.
    if path.parent.resolve().joinpath(path.name).is_relative_to(layout.path):
        raise BadInput(f"{path} is in the store {layout.root}", hint="choose a destination outside it")
    return path
