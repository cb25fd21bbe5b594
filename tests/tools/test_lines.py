"""What counts as code, docstring, comment and blank."""

from __future__ import annotations

from tests.tools.lines import KINDS, ROOMS, ROOT, count, kinds_of, table

MODULE = '''"""Say what
it is."""

# A reason.
A = 1  # not on a line of its own
"""What A is."""


def f() -> str:
    """Return it."""
    # Another reason,
    # of two lines.
    return """text
# in a string
"""
'''


def test_each_line_is_of_one_kind() -> None:
    assert kinds_of(MODULE) == {"docstring": 4, "comment": 3, "code": 5, "blank": 3}


def test_the_sum_is_every_line_of_the_shipped_code() -> None:
    rooms = count(ROOT)
    paths = [path for top in ROOMS for path in (ROOT / top).rglob("*.py")]
    lines = sum(len(path.read_text().splitlines()) for path in paths)

    assert sum(kinds[kind] for kinds in rooms.values() for kind in KINDS) == lines
    assert f"{lines:,}" in list(table(rooms))[-1]
