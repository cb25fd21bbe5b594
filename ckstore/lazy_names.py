"""Public names that are loaded on first use from the modules that a stub file lists."""

from __future__ import annotations

from functools import cached_property


class LazyNames:
    """The names of a public module; each line of its stub file imports one name from the module that defines it."""

    def __init__(self, module: str, file: str) -> None:
        self._module, self._file = module, file

    @cached_property
    def homes(self) -> dict[str, str]:
        """Name -> the module that defines it."""
        import re
        from pathlib import Path

        stub = Path(self._file).with_suffix(".pyi").read_text(encoding="ascii")
        found = re.findall(r"^from (ckstore\.\S+) import (\S+) as \2$", stub, re.MULTILINE)
        return {name: module for module, name in found}

    def load(self, name: str) -> object:
        """Return the value of a name.

        Raises:
            AttributeError: The module has no such name.
        """
        if (name.startswith("__") and name != "__version__") or name not in self.homes:
            msg = f"module {self._module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        import importlib

        return getattr(importlib.import_module(self.homes[name]), name)
