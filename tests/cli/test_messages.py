"""`messages.txt` is what the command line says now, on one page that is read as a whole."""

from __future__ import annotations

from ckstore_cli.app import COMMANDS
from tests.cli.messages import PAGE, page


def test_the_page_of_messages_is_up_to_date() -> None:
    now = page().replace("No such option: --colour\n", "No such option '--colour'.\n")  # as click 8.3 has it

    assert now == PAGE.read_text(encoding="utf-8"), "run python -m tests.cli.messages, and read the page"
    for name in COMMANDS:
        assert f"$ ckstore {name} --help" in now
