"""Bash splits words at ``@``: it asks for completions of ``12`` where ``main@12`` was typed.

click hands the pieces on as separate arguments. Here they are put together again, and since bash
replaces only what stands after the ``@``, only that is given back. Imported only for completion.
"""

from __future__ import annotations

from typing import Any

from click.shell_completion import BashComplete, add_completion_class

from ckstore_cli._compat import override


class AtBashComplete(BashComplete):
    """Completion for bash that can complete ``RUN@STEP``."""

    _given = ""

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words before the cursor's, and the cursor's as far as it is typed."""
        args, incomplete = super().get_completion_args()
        if incomplete == "@" and args:
            self._given = args.pop() + "@"
            return args, self._given
        if len(args) >= 2 and args[-1] == "@":
            self._given = args[-2] + "@"
            return args[:-2], self._given + incomplete
        return args, incomplete

    @override
    def format_completion(self, item: Any) -> str:
        """Return a line for the script of bash, without what bash has already."""
        item.value = item.value.removeprefix(self._given)
        return super().format_completion(item)


def register() -> None:
    """Make click use it."""
    add_completion_class(AtBashComplete)
