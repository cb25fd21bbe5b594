"""mfusepy, by which a test shows a filesystem of its own."""

from __future__ import annotations

import importlib
import os
from typing import Any


def libfuse_3() -> Any:
    """Return mfusepy, which has no types, with libfuse 3: by itself it takes libfuse 2 where both are installed."""
    os.environ["FUSE_LIBRARY_NAME"] = "fuse3"
    return importlib.import_module("mfusepy")
