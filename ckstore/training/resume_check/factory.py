"""The importable name of a function that makes a loop, for a fresh process."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckstore.errors import BadInput
from ckstore.tensors.refusals import type_name

_MAIN = "__mp_main__"
"""The module name of a script in a process that imports it, as in `multiprocessing`."""


@dataclass(frozen=True, slots=True)
class Factory:
    """A function of a module.

    Attributes:
        module: The name of the module, or the path of its file.
        attribute: The name of the function in the module.
    """

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    @property
    def is_file(self) -> bool:
        """Whether the module is given by the path of its file."""
        return self.module.endswith(".py") or "/" in self.module

    @classmethod
    def of(cls, given: str | Callable[[], Any]) -> Factory:
        """Return the factory for a function, or for its name, such as ``module:function``.

        Raises:
            BadInput: The function has no name by which another process can import it.
        """
        return cls._read(given) if isinstance(given, str) else cls._of_function(given)

    @classmethod
    def _read(cls, text: str) -> Factory:
        module, colon, attribute = text.rpartition(":")
        if not (module and colon and all(part.isidentifier() for part in attribute.split("."))):
            msg = f"wanted MODULE:FUNCTION or FILE.py:FUNCTION, got {text!r}"
            raise BadInput(msg, hint="name the function that makes the loop, such as train:make_loop")
        factory = cls(module, attribute)
        if factory.is_file:
            file = Path(module).expanduser().resolve()
            if not file.is_file():
                raise BadInput(
                    f"{module} is not a file", hint="FILE.py:FUNCTION names a script, MODULE:FUNCTION a module"
                )
            return cls(str(file), attribute)
        return factory

    @classmethod
    def _of_function(cls, function: Callable[[], Any]) -> Factory:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):  # an object with `__call__`, or not a callable
            msg = f"make_loop must be a function or its name, got {type_name(type(function))}"
            raise BadInput(msg, hint='give a function of a module, or "module:function"')
        if "<" in name:
            msg = f"{name} is defined inside a function, and a fresh process cannot import it"
            raise BadInput(msg, hint="define make_loop at the top of a module")
        if module != "__main__":
            return cls(module, name)
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:  # started with python -m
            return cls(spec.name, name)
        if file is None or not Path(file).is_file():
            msg = f"{name} is defined in a prompt or a notebook, and a fresh process cannot import it"
            raise BadInput(msg, hint="write it into a file, and import it from this file")
        return cls(str(Path(file).resolve()), name)

    def load(self) -> Callable[[], Any]:
        """Import the module in this process and return the function. Errors of the module are not caught.

        Raises:
            BadInput: The module does not exist, or it has no such function.
        """
        found: Any = self._script() if self.is_file else self._module()
        for name in self.attribute.split("."):
            if not hasattr(found, name):
                raise BadInput(f"{self.module} has no {self.attribute}", hint="name the function that makes the loop")
            found = getattr(found, name)
        if not callable(found):
            msg = f"{self} must be a function, got {type_name(type(found))}"
            raise BadInput(msg, hint="name the function that makes the loop")
        made: Callable[[], Any] = found
        return made

    def _module(self) -> types.ModuleType:
        try:
            is_there = importlib.util.find_spec(self.module) is not None
        except (ModuleNotFoundError, ValueError) as error:  # no parent package, or an invalid name
            if isinstance(error, ModuleNotFoundError) and not f"{self.module}.".startswith(f"{error.name}."):
                raise
            is_there = False
        if not is_there:
            msg = f"there is no module {self.module}"
            raise BadInput(msg, hint="start in the directory of the module, or name its file: FILE.py:FUNCTION")
        return importlib.import_module(self.module)

    def _script(self) -> types.ModuleType:
        module = types.ModuleType(_MAIN)
        module.__file__ = self.module
        # Use this name, as `multiprocessing` does, so that the workers of a data loader can import the script.
        sys.modules[_MAIN] = sys.modules["__main__"] = module
        importlib.machinery.SourceFileLoader(_MAIN, self.module).exec_module(module)
        return module
