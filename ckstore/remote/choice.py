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

    def of(self, context: Context) -> list[CheckpointInfo]:
        """Return the checkpoints, each once; without a word about which, the newest.

        Raises:
            BadInput: Both refs and a rule are given.
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint.
        """
        rule = self.all or self.tagged or self.run is not None
        if self.refs is not None and rule:
            raise BadInput(
                "give refs, or one of all=, tagged= and run=, not both", command_hint="give REF, or an option"
            )
        if rule:
            run = self.run if self.run is not None else context.run
            return [info for info in infos(context, run) if info.tags or not self.tagged]
        refs = "latest" if self.refs is None else self.refs
        several = isinstance(refs, Iterable) and not isinstance(refs, str)
        named: Iterable[AnyRef] = refs if several else (refs,)  # type: ignore[assignment]
        found = [find(context, ref) for ref in named]
        return [*{info.key: info for info in found}.values()]
