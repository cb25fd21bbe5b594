"""The types of reports and arguments.

They may be renamed in any version before 1.0, and later only in a release that announces it. Their attributes and their
text can be used like every other part of the interface. Only the names of the classes are provisional.
"""

from __future__ import annotations

from ckstore.lazy_names import LazyNames

_NAMES = LazyNames(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__all__":
        return sorted(_NAMES.homes)
    return _NAMES.load(name)


def __dir__() -> list[str]:
    return sorted(_NAMES.homes)
