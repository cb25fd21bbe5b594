"""Completion of ``RUN@STEP`` in bash, which splits words at ``@`` and ``=``.

To complete ``main@12``, bash passes ``main``, ``@`` and ``12``, and click treats them as separate arguments. This
module joins them again. Bash replaces only the end of the word, and passes this end as ``$2`` (``@12`` or ``12``,
depending on the version and settings of bash). The script passes the end on, and only its replacement is printed. This
module is imported only for completion.
"""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import BashComplete, add_completion_class

from ckstore_cli._compat import override

_REPLACED = "_CKSTORE_REPLACED"
"""The end of the word under the cursor that bash replaces."""


class AtBashComplete(BashComplete):
    """Completes ``RUN@STEP`` and ``--run=RUN`` in bash."""

    source_template = BashComplete.source_template.replace("response=$(env ", f'response=$(env {_REPLACED}="$2" ', 1)

    _kept = ""

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words before the cursor, and the typed part of the word at the cursor."""
        args, incomplete = super().get_completion_args()
        *before, typed = _joined([*args, incomplete])
        replaced = os.environ.get(_REPLACED, typed)
        # Bash replaces only the end of the word, so the beginning must not be printed again.
        self._kept = typed[: len(typed) - len(replaced)] if typed.endswith(replaced) else ""
        return before, typed

    @override
    def format_completion(self, item: Any) -> str:
        """Return a line for the bash script, without the part of the word that bash keeps."""
        item.value = item.value.removeprefix(self._kept)
        return super().format_completion(item)


def _joined(words: list[str]) -> list[str]:
    """Join the words that bash has split."""
    joined: list[str] = []
    continues = False
    for word in words:
        parts = word == "@" or (word == "=" and joined[-1:] and joined[-1].startswith("--"))
        if joined and word and (parts or continues):
            joined[-1] += word
        else:
            joined.append(word)
        continues = bool(parts)
    return joined


def register() -> None:
    """Register the completion for bash with click."""
    add_completion_class(AtBashComplete)
