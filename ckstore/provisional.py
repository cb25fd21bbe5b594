"""The types of reports and arguments.

Only the names of these classes are provisional. They may change in any version before 1.0, and later only in a release
that announces the change. The attributes and the ``str()`` of their objects are as stable as every other part of the
interface.
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
