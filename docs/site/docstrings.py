"""What griffe does not understand of our docstrings by itself: errors that are not imported, names in one line."""

from __future__ import annotations

from typing import Any

import griffe

ERRORS = "errors"


# Where griffe is not installed its classes have no type.
class Docstrings(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Called by griffe when it has read the package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:  # noqa: ARG002 - as griffe calls it
        """Make the errors of every `Raises` known, and lines such as ``run, step: Its identity`` whole."""
        errors = [name for name, thing in pkg[ERRORS].members.items() if not thing.is_alias and thing.is_class]
        for module in _modules(pkg):
            for name in errors:
                if name not in module.members:
                    module.set_member(name, griffe.Alias(name, f"{pkg.path}.{ERRORS}.{name}", parent=module))
            for thing in module.classes.values():
                if not thing.is_alias and thing.docstring is not None:
                    _join_names(thing)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    below = [inner for child in module.modules.values() if not child.is_alias for inner in _modules(child)]
    return [module, *below]


def _join_names(thing: griffe.Class) -> None:
    """Mend attributes ``run, step``, of which griffe makes one called ``run,`` of the type ``step``."""
    for section in thing.docstring.parsed if thing.docstring else ():
        if section.kind is griffe.DocstringSectionKind.attributes:
            for attribute in section.value:
                if attribute.name.endswith(","):
                    first = attribute.name.removesuffix(",")
                    attribute.name = f"{attribute.name} {attribute.annotation}"
                    attribute.annotation = thing.attributes[first].annotation if first in thing.attributes else None
