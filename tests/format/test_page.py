"""docs/format/v1.md names exactly the members that are written, and its examples are real."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ckstore.errors import NewerFormat
from ckstore.model.checkpoint.tag import TagTarget, parse_tag, tag_text
from ckstore.model.digest import ALGORITHMS, is_digest
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.health import Health
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Description,
    Extent,
    FileRecord,
    LeafRecord,
    Manifest,
    StorageRecord,
    file_json,
    leaf_text,
    render,
)
from ckstore.model.manifest.ranks import RankRecord
from ckstore.model.names import CheckpointKey
from ckstore.model.settings.settings import CHECKPOINT_IDS, ELSEWHERE, parse_settings

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "v1.md").read_text("utf-8")


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def first_column(text: str) -> set[str]:
    """Return the names in the first column of a table."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def a_manifest() -> Manifest:
    digest = "xxh3-" + "0" * 32
    return Manifest(
        run="main",
        step=1,
        sequence=1,
        created="2026-11-21T09:30:00.000000Z",
        writer="test",
        description=Description(),
        logical_bytes=8,
        new_bytes=0,
        reused_bytes=0,
        content=digest,
        blobs=(BlobRecord(digest, 8),),
        storages=(StorageRecord(8, (Extent(digest, 0, 0, 8),)),),
        leaves=(LeafRecord("", "torch", "float32", (1,), 0, 4, (1,)),),
        state=["leaf", 0],
        files=(FileRecord("a", "file", 0o644, (0,), mtime_ns=1), FileRecord("b", "symlink", target="a")),
    )


def test_every_example_of_json_is_json() -> None:
    examples = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert examples
    for example in examples:
        assert isinstance(json.loads(example), dict)


def test_the_example_of_store_json_is_one_with_all_its_members() -> None:
    match = re.search(r"^```json\n(.*?)^```", section("store.json"), re.MULTILINE | re.DOTALL)
    assert match is not None
    settings = parse_settings(match[1].encode("ascii"), "the page")

    assert json.loads(settings.render()) == json.loads(match[1])


def test_the_table_of_requires_names_exactly_what_this_ckstore_knows() -> None:
    match = re.search(r"^```json\n(.*?)^```", section("store.json"), re.MULTILINE | re.DOTALL)
    assert match is not None
    known = [name.strip('"') for name in first_column(section("store.json"))]
    document = {**json.loads(match[1]), "requires": known}

    assert set(known) == {CHECKPOINT_IDS, ELSEWHERE}
    assert parse_settings(json.dumps(document).encode(), "the page").requires == tuple(known)
    with pytest.raises(NewerFormat):
        parse_settings(json.dumps({**document, "requires": [*known, "later"]}).encode(), "the page")


def test_the_forms_of_a_tag_on_the_page_are_those_that_are_read() -> None:
    texts = re.findall(r"(\.\./checkpoints/<run>[^\s`]*)", section("Tags"))
    keys = [CheckpointKey("main", 7, name) for name in ("7.0123456789", "7.0123456789.2", "7")]

    assert len(texts) == 2
    for key in keys:
        forms = [
            text.replace("<run>", key.run).replace("<directory>", key.directory).replace("<step>", key.directory)
            for text in texts
        ]
        assert forms[0] == tag_text(key)
        assert [parse_tag(form) for form in forms] == [TagTarget(key, True), TagTarget(key, False)]


def test_the_table_of_the_manifest_names_exactly_what_is_written() -> None:
    uneven = StorageRecord(6, (Extent("xxh3-0", 0, 0, 5), Extent("xxh3-0", 0, 5, 1)))
    of_ranks = replace(
        a_manifest(), ranks=RankRecord(1, "", ("host",)), storages=(uneven,), health=Health(), training="0" * 32
    )
    body = json.loads(render(of_ranks, ALGORITHMS["xxh3_128"])[1])["manifest"]
    table = section("manifest.json").partition("| member of `M` |")[2]

    assert first_column(table) == set(body)


def test_the_table_of_health_names_exactly_what_is_written() -> None:
    assert first_column(section("Health")) == set(Health().to_json())


def test_the_table_of_leaves_names_exactly_what_is_written() -> None:
    assert first_column(section("Leaves")) == set(json.loads(leaf_text(a_manifest().leaves[0])))


def test_the_table_of_files_names_exactly_what_is_written() -> None:
    written = {name for file in a_manifest().files for name in file_json(file)}

    assert first_column(section("Files")) == written


def test_the_frame_of_a_manifest_is_that_of_the_page() -> None:
    manifest_id, data = render(a_manifest(), ALGORITHMS["xxh3_128"])
    match = re.search(r"^```\n(.*\"digest\".*)\n```", section("manifest.json"), re.MULTILINE)
    assert match is not None
    head, middle, tail = re.split('[DM](?=["}])', match[1])

    assert is_digest(manifest_id)
    assert data.startswith(f"{head}{manifest_id}{middle}{{".encode())
    assert data.endswith(f"}}{tail}\n".encode())


def test_the_torch_dtypes_of_the_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([0-9]+) \| `([^`]+)` \|$", section("Leaves"), re.MULTILINE)
    listed = {name: int(size) for size, names in rows for name in names.split()}

    assert listed == TORCH_ITEMSIZE


def test_the_nodes_of_the_page_are_those_that_the_reader_knows() -> None:
    tags = re.findall(r"`\[\"([\w.]+)\"", section("Nodes").partition("| node |")[2])

    wanted = "int float complex bytes numpy list tuple deque dict defaultdict counter odict set frozenset parts leaf"
    plain = "bytearray io.BytesIO decimal date datetime timedelta path numpy.str_ object enum global"
    of_torch = "torch.Size torch.device torch.dtype torch.layout torch.memory_format torch.qscheme"
    assert set(tags) == {*wanted.split(), *plain.split(), *of_torch.split()}
