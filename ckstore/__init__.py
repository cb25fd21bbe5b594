"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing ckstore imports neither torch nor SQLite. Each public name is loaded on first use from the module that
``__init__.pyi`` lists. The types of reports and arguments are in `ckstore.provisional`.
"""

from __future__ import annotations

from ckstore.lazy_names import LazyNames

_NAMES = LazyNames(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__all__":
        return sorted(_NAMES.homes)
    if name == "provisional":
        import importlib

        return importlib.import_module("ckstore.provisional")
    try:
        return _NAMES.load(name)
    except AttributeError:
        from ckstore import provisional

        if name not in dir(provisional):
            raise
        msg = f"module {__name__!r} has no attribute {name!r}: it is ckstore.provisional.{name}"
        raise AttributeError(msg) from None


def __dir__() -> list[str]:
    return sorted([*_NAMES.homes, "provisional"])
