"""Committed files in a manifest: what is written is read, and nothing that leads elsewhere."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import FileRecord, file_json
from ckstore.model.manifest.parse import read_files
from ckstore.model.names import MOST_LEVELS, check_path, differing_in_case, parent_of


def file(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "kind": "file", "mode": 0o644, "storages": [0], **more}


def directory(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "kind": "directory", "mode": 0o755, **more}


@pytest.mark.parametrize(
    "record",
    [
        FileRecord("a", "file", 0o600, (0, 2, 1)),
        FileRecord("a", "file", 0, (), mtime_ns=-1),
        FileRecord("a", "directory", 0o777, mtime_ns=2**62),
        FileRecord(os.fsdecode(b"\xff\xfe"), "symlink", target="../" + os.fsdecode(b"\x80")),
    ],
)
def test_what_is_written_is_read_back(record: FileRecord) -> None:
    assert read_files(json.loads(json.dumps([file_json(record)])), 3, "x") == (record,)


BAD_PATHS = [
    "",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "./a",
    "a//b",
    "a/",
    "a\0b",
    "a\nb",
    "a\x7f",
    "a" * 256,
    "ü" * 128,
    "/".join(["a" * 200] * 30),
    "/".join(["a"] * 258),
    "\ud800",
    "a\udc00",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leads_elsewhere_or_cannot_be_made_is_refused(path: str) -> None:
    with pytest.raises(BadInput):
        check_path(path)
    with pytest.raises(BadInput, match=r"^x: path of files\[0\]"):
        read_files([file(path)], 1, "x")


def test_a_path_in_as_many_directories_as_a_commit_takes_is_approved() -> None:
    path = "/".join(["a"] * (MOST_LEVELS + 1))

    assert check_path(path) == path


@pytest.mark.property
@given(path=st.text(max_size=40))
def test_what_is_approved_stays_below_where_it_is_made(path: str) -> None:
    try:
        check_path(path)
    except BadInput:
        return
    made = os.path.normpath(os.path.join("/top", path))
    assert made == f"/top/{path}"
    assert all(len(os.fsencode(name)) <= 255 for name in path.split("/"))


@pytest.mark.parametrize(
    "items, why",
    [
        ({}, "files: wanted an array"),
        ([3], r"files\[0\]: wanted an object"),
        ([{}], r"path of files\[0\]"),
        ([file("a", kind="pipe")], "kind of"),
        ([file("a", kind=3)], "kind of"),
        ([file("a", mode=0o1000)], "mode of"),
        ([file("a", mode=True)], "mode of"),
        ([file("a", mode="644")], "mode of"),
        ([file("a", storages=[1])], "storages of"),
        ([file("a", storages=[True])], "storages of"),
        ([file("a", storages=None)], "storages of"),
        ([file("a", mtime=5)], "mtime of"),
        ([file("a", mtime="0005")], "mtime of"),
        ([file("a", mtime="9" * 30)], "mtime of"),
        ([{"path": "a", "kind": "symlink", "target": ""}], "target of"),
        ([{"path": "a", "kind": "symlink", "target": "a\0"}], "target of"),
        ([{"path": "a", "kind": "symlink"}], "target of"),
        ([file("a"), file("a")], "each path once"),
        ([file("a/b")], "parent of"),
        ([file("a"), file("a/b")], "parent of"),
        ([{"path": "a", "kind": "symlink", "target": "/"}, file("a/b")], "parent of"),
        ([directory("a"), file("a/b/c")], "parent of"),
    ],
)
def test_what_is_not_as_the_format_says_is_refused(items: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_files(items, 1, "x")


def test_paths_that_differ_in_case_are_found() -> None:
    assert differing_in_case(["a/B", "a/c", "A/b"]) == ("a/B", "A/b")
    assert differing_in_case(["a", "b"]) is None
    assert (parent_of("a/b/c"), parent_of("a")) == ("a/b", "")
