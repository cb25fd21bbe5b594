"""The check of prose finds each habit, leaves plain sentences alone, and its baseline only shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import prose
from tests.tools.prose import Hit, baseline_text, check, compare, files, hits, lowered, main, read_baseline


@pytest.mark.parametrize(
    "habit, sentence",
    [
        ("a clause as a noun", "What was saved; for X, and the same content, the new one."),
        ("a clause as a noun", "Free what no checkpoint needs."),
        ("a clause as a noun", "The report of what is kept."),
        ("pointing in place of naming", "A file elsewhere is linked."),
        ("pointing in place of naming", "All that it has by now."),
        ("a verb of moving or saying", "Let go of local bytes."),
        ("a verb of moving or saying", "It brings back a checkpoint."),
        ("a colon as a verb", "The names, or None: all of them."),
        ("a colon as a verb", "The names, or ``None``: all of them."),
        ("a chain of clauses", "It is opened; it is read; it is closed."),
        ("a chain of clauses", "Return the newest: of the run; empty: none."),
        ("the topic in front", "Of a remote that was opened by its URL: the name."),
        ("emphasis at the end", "Pull requests are read, too."),
        ("emphasis at the end", "It is at the remote alone."),
        ("passive perception", "The file was seen to have a link."),
        ("passive perception", "It turned out to be damaged."),
        ("an odd word", "Whatever somebody else writes."),
    ],
)
def test_each_habit_is_found(habit: str, sentence: str) -> None:
    assert habit in {hit.habit for hit in hits("page.md", sentence)}


@pytest.mark.parametrize(
    "sentence",
    [
        'XXH3 detects accidental corruption. Use `hash="blake3"` to detect tampering as well as corruption.',
        "Retention rules can be set per run. Deletions can be undone for 24 hours.",
        "The new checkpoint, or the existing one if its content is identical.",
        "If None, this is detected from the filesystem.",
        "Lookups wait up to ten seconds; then they fail.",
        "What is a checkpoint?",
        "DAMAGED: a read found corruption.",
    ],
)
def test_plain_sentences_are_left_alone(sentence: str) -> None:
    assert hits("page.md", sentence) == []


def test_a_page_is_read_by_paragraphs_cells_and_items_without_its_code() -> None:
    page = (
        "It is read\nby now.\n\n```python\nby_now = 'by now'\n```\n\n- by now\n- by `by now`\n\n"
        "| by now | `by now` |\n| --- | --- |\n| one | by now |\n\n<!-- by now -->\n"
    )

    assert [hit.line for hit in hits("page.md", page)] == [1, 8, 11, 13]


def test_a_directive_and_its_options_are_no_prose() -> None:
    page = "::: package.Name\n    options: { heading_level: 3, members: [] }\n\nIt is read by now.\n"

    assert [hit.line for hit in hits("page.md", page)] == [4]


def test_a_module_is_read_by_docstrings_help_and_messages() -> None:
    module = (
        '"""Read it by now.\n\nArgs:\n    name: By now the name.\n        It is by now.\n"""\n'
        "# by now\nby_now = 'by now'\nhelp = 'it is read by now'\n"
        "error = f'{name} has to be read by now' ' and written by now'\n"
        "def f():\n    '''Bring the rest.'''\n"
    )

    assert [(hit.line, hit.habit) for hit in hits("module.py", module)] == [
        (1, "pointing in place of naming"),
        (4, "pointing in place of naming"),
        (4, "pointing in place of naming"),
        (12, "a first line without an object"),
        (12, "a verb of moving or saying"),
        (9, "pointing in place of naming"),
        (10, "pointing in place of naming"),
        (10, "pointing in place of naming"),
    ]


HITS = [Hit("a.md", 1, "a colon as a verb", "None: all"), Hit("a.md", 9, "an odd word", "anew")]


def test_more_hits_than_the_baseline_allows_are_listed_each() -> None:
    assert list(compare(HITS, {"a.md": 2})) == []
    assert list(compare(HITS, {"a.md": 1})) == [
        "a.md:1: a colon as a verb: None: all",
        "a.md:9: an odd word: anew",
        "a.md: 2 hits, at most 1 allowed; rewrite the sentences that are new",
    ]
    assert len(list(compare(HITS, {}))) == 3


def test_fewer_hits_have_to_be_written_down_and_the_numbers_only_fall() -> None:
    (line,) = compare(HITS, {"a.md": 3})
    assert "python -m tests.tools.prose --write" in line

    assert lowered(HITS, {"a.md": 3, "gone.md": 1}) == {"a.md": 2, "gone.md": 0}
    assert lowered(HITS, {"a.md": 1}) == {"a.md": 1}
    assert lowered(HITS, None) == {"a.md": 2}
    assert read_baseline(baseline_text({"b c.md": 1, "a.md": 2, "gone.md": 0})) == {"a.md": 2, "b c.md": 1}


def test_the_command_writes_a_baseline_and_fails_on_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "tests" / "tools").mkdir(parents=True)
    page = tmp_path / "README.md"
    page.write_text("It is kept by now.\n")

    assert main([]) == 1
    assert main(["--write"]) == 0
    assert main([]) == 0
    page.write_text("It is kept by now, and was read by then.\n")
    assert main(["--write"]) == 0
    capsys.readouterr()
    assert main([]) == 1
    assert "README.md: 2 hits, at most 1 allowed" in capsys.readouterr().out
    assert main([str(page)]) == 1


def test_the_shipped_code_and_its_pages_are_checked() -> None:
    checked = set(files(prose.ROOT))

    assert {"README.md", "docs/protocol.md", "ckstore/store.py", "cli/ckstore_cli/app.py"} <= checked
    assert "CHANGELOG.md" not in checked
    assert {hit.file for hit in check(prose.ROOT)} <= checked
