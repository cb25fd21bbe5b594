"""Selects the checkpoints of a push, a pull or an eviction, and defines the options of a transfer."""

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
    """The keyword options of `Store.push`, `Store.pull` and `Store.evict` that select checkpoints by a rule.

    Attributes:
        run: Select the checkpoints of this run. Superseded ones are included only if a tag or a pin names them.
        all: Select the checkpoints of all runs, or of the run that the handle is bound to. Superseded ones are included
            only if a tag or a pin names them.
        tagged: Select the checkpoints that have a tag. If `run` is given, only those of that run are selected. A pull
            uses the tags of the remote.
    """

    run: str | None
    all: bool
    tagged: bool


class TransferOptions(ChoiceOptions, total=False):
    """The common options of `Store.push` and `Store.pull`, which select checkpoints and limit the transfer.

    Attributes:
        bwlimit: Limit in bytes per second, as a number or a size such as ``50MiB``. If None, there is no limit.
        progress: Called regularly with the number of bytes transferred so far and the total number of bytes.
    """

    bwlimit: int | str | None
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The refs or the rule that the caller gave."""

    refs: AnyRef | Iterable[AnyRef] | None  # one ref or several; None if no ref was given
    options: ChoiceOptions  # the rule, if one was given

    @property
    def run(self) -> str | None:
        """The run whose checkpoints are selected."""
        return self.options.get("run")

    @property
    def tagged(self) -> bool:
        """Whether only checkpoints with a tag are selected."""
        return self.options.get("tagged", False)

    def by_rule(self) -> bool:
        """Whether a rule selects the checkpoints.

        Raises:
            BadInput: Both refs and a rule were given.
        """
        rule = self.options.get("all", False) or self.tagged or self.run is not None
        if self.refs is not None and rule:
            raise BadInput("both refs and a rule were given", **HINT)
        return rule

    def several(self) -> list[AnyRef]:
        """Return the refs, or `latest` if none were given."""
        if self.refs is None:
            return ["latest"]
        if isinstance(self.refs, Iterable) and not isinstance(self.refs, str):
            return [*self.refs]
        return [self.refs]

    def of(self, context: Context) -> list[CheckpointInfo]:
        """Return the selected checkpoints of a store, without duplicates."""
        if self.by_rule():
            run = self.run if self.run is not None else context.run
            return [info for info in current_or_named(context, run) if info.tags or not self.tagged]
        found = [find(context, ref) for ref in self.several()]
        return [*{info.key: info for info in found}.values()]
