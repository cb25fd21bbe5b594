"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing ckstore imports neither torch nor SQLite. Each public name is loaded on first use from the module that
``__init__.pyi`` lists.
"""

from __future__ import annotations

from functools import cache


@cache
def _homes() -> dict[str, str]:
    """Return the public names with the modules that define them."""
    import re
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="ascii")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\S+) as \2$", stub, re.MULTILINE)}


def __getattr__(name: str) -> object:
    if name == "__all__":
        return sorted(_homes())
    if (name.startswith("__") and name != "__version__") or name not in _homes():
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return sorted(_homes())
