"""Which checkpoints a push, a pull or an eviction is about, and how they are moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.listing import current_or_named

if TYPE_CHECKING:
    from ckstore.model.reports.progress import Progress
    from ckstore.ops.context import Context


HINT = {
    "hint": "give refs, or one of all=True, tagged=True and run=RUN",
    "command_hint": "give refs, or one of --all, --tagged and --run RUN",
}


class ChoiceOptions(TypedDict, total=False):
    """The options of `Store.push`, `Store.pull` and `Store.evict` that choose checkpoints by a rule; all are keywords.

    Attributes:
        run: Every checkpoint of this run; superseded ones only if a tag or a pin names them.
        all: The same of every run, or of the run that the handle is bound to.
        tagged: Every checkpoint that has a tag (for a pull: there), of `run` if it is given.
    """

    run: str | None
    all: bool
    tagged: bool


class TransferOptions(ChoiceOptions, total=False):
    """The options that `Store.push` and `Store.pull` have in common: those of `ChoiceOptions`, and how bytes are moved.

    Attributes:
        bwlimit: Limit in bytes a second: a number, or a size such as ``50MiB``; None: as fast as it goes.
        progress: Called now and then with the bytes that were moved and those to be moved.
    """

    bwlimit: int | str | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the caller named."""

    refs: AnyRef | Iterable[AnyRef] | None  # one ref, or several; None: none
    options: ChoiceOptions  # the rule, if it is one

    @property
    def run(self) -> str | None:
        """Every checkpoint of this run."""
        return self.options.get("run")

    @property
    def tagged(self) -> bool:
        """Only those that have a tag."""
        return self.options.get("tagged", False)

    def by_rule(self) -> bool:
        """Whether a rule says which, not refs; both are refused."""
        rule = self.options.get("all", False) or self.tagged or self.run is not None
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
        """Return the checkpoints of a store, each once."""
        if self.by_rule():
            run = self.run if self.run is not None else context.run
            return [info for info in current_or_named(context, run) if info.tags or not self.tagged]
        found = [find(context, ref) for ref in self.several()]
        return [*{info.key: info for info in found}.values()]
