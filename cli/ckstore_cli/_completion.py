"""Bash splits words at ``@`` and ``=``: ``main@12`` reaches a completion as ``main``, ``@``, ``12``.

click hands the pieces on as separate arguments. Here they are put together again. What bash then replaces is not the
whole word either but the end of it that it gives as ``$2`` (``@12`` or ``12``, by its version and settings), so the
script passes that on, and only what stands in its place is given back. Imported only for completion.
"""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import BashComplete, add_completion_class

from ckstore_cli._compat import override

_REPLACED = "_CKSTORE_REPLACED"
"""The end of the word under the cursor that bash replaces."""


class AtBashComplete(BashComplete):
    """Completion for bash that can complete ``RUN@STEP`` and ``--run=RUN``."""

    source_template = BashComplete.source_template.replace("response=$(env ", f'response=$(env {_REPLACED}="$2" ', 1)

    _kept = ""

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words before the cursor's, and the cursor's as far as it is typed."""
        args, incomplete = super().get_completion_args()
        *before, typed = _joined([*args, incomplete])
        replaced = os.environ.get(_REPLACED, typed)
        # Bash replaces only the end of the word: the whole would appear twice on the line.
        self._kept = typed[: len(typed) - len(replaced)] if typed.endswith(replaced) else ""
        return before, typed

    @override
    def format_completion(self, item: Any) -> str:
        """Return a line for the script of bash, without what bash keeps."""
        item.value = item.value.removeprefix(self._kept)
        return super().format_completion(item)


def _joined(words: list[str]) -> list[str]:
    """Put together what bash has split."""
    joined: list[str] = []
    goes_on = False
    for word in words:
        parts = word == "@" or (word == "=" and joined[-1:] and joined[-1].startswith("--"))
        if joined and word and (parts or goes_on):
            joined[-1] += word
        else:
            joined.append(word)
        goes_on = bool(parts)
    return joined


def register() -> None:
    """Make click use it."""
    add_completion_class(AtBashComplete)
