"""Statements use placeholders that every supported Python accepts without a warning."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("ckstore", "migrations", "tests") for path in (ROOT / folder).rglob("*.py"))


def numbered(source: str) -> list[str]:
    """Return the texts of a module that are SQL with numbered placeholders."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and re.search(r"(?s)\b(?:SELECT|WHERE)\b.*\?\d", text)]


@pytest.mark.parametrize("source", ['x = "SELECT a WHERE b = ?1"', 'x = f"SELECT {a} FROM b WHERE c = ?2 LIMIT 3"'])
def test_a_numbered_placeholder_is_found(source: str) -> None:
    assert numbered(source)
    assert numbered(source.replace("?1", "?").replace("?2", ":c")) == []


def test_no_statement_has_numbered_placeholders() -> None:
    # Python 3.12.0 to 3.12.3 warns of each as of a named placeholder that is given a sequence.
    others = [path for path in SOURCES if path != Path(__file__).resolve()]
    found = {str(path.relative_to(ROOT)): numbered(path.read_text(encoding="utf-8")) for path in others}

    assert {name: texts for name, texts in found.items() if texts} == {}
