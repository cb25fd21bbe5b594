"""A room stays small enough to be read through: at most twenty modules in a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 20
SOURCES = ("ckstore", "cli", "migrations")


def test_no_folder_has_more_than_twenty_modules() -> None:
    modules = [
        path.relative_to(ROOT)
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    ]
    rooms = Counter(str(module.parent) for module in modules)

    assert len(modules) > 150
    assert {room: count for room, count in rooms.items() if count > MOST} == {}


def test_every_room_says_what_it_is_for() -> None:
    rooms = {path.parent for source in SOURCES for path in (ROOT / source).rglob("*.py")}
    rooms -= {ROOT / "cli", ROOT / "migrations"}
    silent = [
        str(room.relative_to(ROOT))
        for room in rooms
        if not (room / "__init__.py").exists()
        or not (room / "__init__.py").read_text(encoding="utf-8").startswith('"""')
    ]

    assert silent == []
