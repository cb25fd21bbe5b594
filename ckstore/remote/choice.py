"""Which checkpoints a push or an eviction is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.listing import infos

if TYPE_CHECKING:
    from ckstore.ops.context import Context


HINT = {
    "hint": "give refs, or one of all=True, tagged=True and run=RUN",
    "command_hint": "give refs, or one of --all, --tagged and --run RUN",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the caller named.

    Attributes:
        refs: One ref, or several; None: none.
        all: Every checkpoint, or every one of `run`.
        tagged: Those that have a tag, of `run` if it is given.
        run: Every one of this run.
    """

    refs: AnyRef | Iterable[AnyRef] | None = None
    all: bool = False
    tagged: bool = False
    run: str | None = None

    def by_rule(self) -> bool:
        """Whether a rule says which, not refs.

        Raises:
            BadInput: Both do.
        """
        rule = self.all or self.tagged or self.run is not None
        if self.refs is not None and rule:
            raise BadInput("refs were given, and a rule as well", **HINT)
        return rule

    def several(self) -> list[AnyRef]:
        """Return the refs; the newest if none are given."""
        if self.refs is None:
            return ["latest"]
        if isinstance(self.refs, Iterable) and not isinstance(self.refs, str):
            return [*self.refs]
        return [self.refs]

    def of(self, context: Context) -> list[CheckpointInfo]:
        """Return the checkpoints of a store, each once.

        Raises:
            BadInput: Both refs and a rule are given.
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint.
        """
        if self.by_rule():
            run = self.run if self.run is not None else context.run
            return [info for info in infos(context, run) if info.tags or not self.tagged]
        found = [find(context, ref) for ref in self.several()]
        return [*{info.key: info for info in found}.values()]
