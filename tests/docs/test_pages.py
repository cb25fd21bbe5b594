"""What single pages say of the words, the values and the code is so."""

from __future__ import annotations

import ast
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import values
from tests.support.docblocks import blocks
from tests.support.requirements import require_transformers

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = [path for room in ("ckstore", "cli") for path in sorted((ROOT / room).rglob("*.py"))]

# The words of the design; the glossary may have more.
WORDS = [
    "blob",
    "catalog",
    "checkout",
    "checkpoint",
    "chunk",
    "digest",
    "export",
    "extent",
    "gc",
    "lease",
    "manifest",
    "pack",
    "part",
    "piece",
    "pin",
    "prune",
    "publish",
    "ref",
    "retention",
    "run",
    "saver",
    "staging",
    "step",
    "tag",
    "trash",
    "verify",
]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return what is below each heading of the second level; a heading that stands twice is an error."""
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    bodies = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert len(set(titles)) == len(titles)
    return dict(zip(titles, bodies, strict=True))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_the_glossary_defines_each_word_once_in_order_and_leads_on() -> None:
    found = sections(page("glossary.md"))

    assert {*WORDS, "reader lock"} <= set(found)
    assert list(found) == sorted(found)
    assert [word for word, body in found.items() if not re.search(r"\]\([^)#]+\.md", body)] == []


def test_each_value_of_the_page_about_states_is_tried_by_its_blocks() -> None:
    text = page("reference/state.md")
    stored, refused = sections(text)["Values that are stored"], sections(text)["Values that are refused"]
    kept, raised = (block.text for block in blocks(text) if block.language == "python")

    for table, tried in ((stored, kept), (refused, raised)):
        rows = [cells(row) for row in table.splitlines() if row.startswith("| ")][1:]
        examples = [row[1].strip("`") for row in rows if "---" not in row[0]]

        assert len(examples) > 12
        assert [example for example in examples if f"    {example},\n" not in tried] == []
        assert len(re.findall(r"^    \S.*,$", tried, re.MULTILINE)) == len(examples)


def test_the_tables_of_the_page_about_states_are_what_the_code_says() -> None:
    text = values.PAGE.read_text(encoding="utf-8")
    rows = [cells(row) for row in sections(text)["Values that are stored"].splitlines() if row.startswith("| `")]
    named = [re.findall(r"`(?:\w+\.)?(\w+)`", row[0]) for row in rows]
    (factories,) = (set(names[1:]) for names in named if "defaultdict" in names)

    assert text == values.rewritten(text), "run python -m tests.docs.values"
    assert values.type_names() - {name for names in named for name in names} == set()
    assert factories == values.factory_names()


def test_each_message_of_the_troubleshooting_page_is_one_that_the_code_can_give() -> None:
    quoted = re.findall(r"^### `(.*)`$", page("troubleshooting.md"), re.MULTILINE)
    given = {normal(message) for path in SOURCES for message in messages(path.read_text(encoding="utf-8"))}

    assert len(quoted) >= 20
    assert len(set(quoted)) == len(quoted)
    assert [message for message in quoted if not any(normal(message) in other for other in given)] == []


def normal(message: str) -> str:
    """Return a message with one mark for all that differs, and none at its ends."""
    return re.sub(r"…(?:@?…)*", "…", message).strip("… ")


def messages(source: str) -> Iterator[str]:
    """Yield the texts in a module, with … where a value is put in."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def test_a_message_that_is_put_together_is_found_with_its_gaps() -> None:
    found = list(messages('raise E(f"{a}: wanted {b!r}" f", got {c}")\nraise E("plain")\n"docstring"\n'))

    assert found == ["…: wanted …, got …", "plain"]
    assert normal("… of …@… is …") == "of … is"


def test_each_test_that_a_page_names_exists() -> None:
    named = {
        match
        for path in sorted(DOCS.rglob("*.md"))
        for match in re.findall(r"(tests/[\w/]+\.py)::(\w+)", path.read_text(encoding="utf-8"))
    }

    missing = [
        f"{file}::{test}"
        for file, test in sorted(named)
        if not re.search(rf"^ *def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert named
    assert missing == []


def test_each_module_and_each_room_of_the_architecture_page_exists() -> None:
    named = set(re.findall(r"`([a-z_/0-9]+(?:\.py|/))`", page("architecture.md")))
    on_disk = {"trash/", "staging/", "blobs/"}
    missing = [name for name in named - on_disk if not ((ROOT / "ckstore" / name).exists() or (ROOT / name).exists())]

    assert len(named) > 60
    assert missing == []


def test_each_room_is_on_the_architecture_page_and_in_its_picture() -> None:
    text = page("architecture.md")
    rooms = {path.parent.name for path in (ROOT / "ckstore").glob("*/__init__.py")}
    (picture,) = (block.text for block in blocks(text) if block.language == "text")

    assert "ops" in rooms
    assert {room for room in rooms if f"| `{room}/` |" not in text} == set()
    assert {room for room in rooms if f"{room}/" not in picture} == set()


def test_no_cell_of_the_architecture_page_has_more_than_two_files() -> None:
    cells = [cell for line in page("architecture.md").splitlines() if line.startswith("|") for cell in line.split("|")]

    assert [cell for cell in cells if cell.count(".py`") > 2] == []


def test_each_walk_is_a_numbered_list_of_modules() -> None:
    found = sections(page("architecture.md"))
    walks = [found[title] for title in ("A save", "A load", "A dead blob", "A commit of files")]

    for walk in walks:
        steps = re.findall(r"^(\d+)\. (.*)$", walk, re.MULTILINE)

        assert len(steps) >= 8
        assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
        assert [line for _, line in steps if not re.match(r"`[\w/]+\.py`: ", line)] == []


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "fsdp2", "lightning"])
def test_the_page_of_a_framework_resumes_only_where_there_is_a_checkpoint(name: str) -> None:
    (block,) = (block.text for block in blocks(page(f"how-to/{name}.md")) if "Store.open" in block.text)
    resumes = re.search(r"latest-valid|\bload\(engine", block)

    assert resumes is not None
    assert "if store.latest() is not None" in block[: resumes.end() + len('" if store.latest() is not None')]


MADE = [
    path for path in sorted(DOCS.rglob("*.md")) if re.search(r"^::: ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_page_that_is_made_from_docstrings_says_at_its_top_how_to_read_it(path: Path) -> None:
    top = path.read_text(encoding="utf-8").partition("\n:::")[0]
    (name,) = re.findall(r"read it with `make docs`, or `python -m pydoc ([\w.]+)`", top)
    if name.endswith("transformers"):
        require_transformers()

    assert len(pydoc.render_doc(name)) > 2000


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_readme_leads_to_no_page_that_is_empty_until_it_is_built() -> None:
    links = re.findall(r"\]\(([^)#]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))

    assert len(links) > 20
    assert [link for link in links if ROOT / link in MADE] == []
