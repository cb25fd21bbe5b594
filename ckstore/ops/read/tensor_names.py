"""The names of what a checkpoint keeps as bytes, as they are written and looked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckstore.errors import AmbiguousRef, NoSuchRef
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.names import plain, spellings
from ckstore.tensors.walks import leaf_numbers, parts_in

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Manifest, Node

_NEAR = 5


class TensorNames:
    """Finds leaves, and tensors that are made of several, by their names in the state or by those without backslashes.

    Attributes:
        leaves: Each by its name in the state.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.leaves = {leaf.name: leaf for leaf in manifest.leaves}  # each by its name in the state

    @cached_property
    def written(self) -> dict[str, str]:
        """How each name is written; see `spellings`."""
        return spellings([*self.leaves, *self._parts])

    @cached_property
    def listed(self) -> list[str]:
        """The names, in the order of the state: a tensor that is made of several is listed by its own name."""
        wholes = {i: name for name, node in self._parts.items() for i in leaf_numbers(node)}
        names = dict.fromkeys(wholes.get(i, name) for i, name in enumerate(self.leaves))
        return [self.written[name] for name in names]

    def __contains__(self, name: object) -> bool:
        return name in self.leaves or name in self._by_plain

    def find(self, name: str) -> LeafRecord | tuple[str, Node]:
        """Return the leaf of that name, or name and node of a tensor that is made of several."""
        meant = [name] if name in self.leaves or name in self._parts else self._by_plain.get(name, ())
        if len(meant) == 1:
            return self.leaves.get(meant[0]) or (meant[0], self._parts[meant[0]])
        checkpoint = self._manifest.name
        if meant:
            msg = f"{checkpoint} has several tensors that are written {name!r}: {', '.join(meant)}"
            raise AmbiguousRef(msg, hint="give the name with its backslashes")
        near = [key for key in self.listed if name.rpartition(".")[2] in key][:_NEAR]
        msg = f"{checkpoint} has no tensor named {name!r}"
        raise NoSuchRef(msg, hint=f"similar: {', '.join(near)}" if near else "keys() lists them")

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return dict(parts_in(self._manifest.state))

    @cached_property
    def _by_plain(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in (*self.leaves, *self._parts):
            found.setdefault(plain(key), []).append(key)
        return found
