"""Compare the names in a store with the pages of docs/format: of its files, and of the members of its documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[2] / "docs" / "format"
_PAGES = {path.stem: path.read_text("utf-8") for path in _FOLDER.glob("*.md")}
_TEXT = "\n".join(_PAGES.values())

_DIGEST = r"(xxh3-[0-9a-f]{32}|blake3-[0-9a-f]{64})"
_UUID = "[0-9a-f]{32}"
_RUN = r"[A-Za-z0-9._-]{1,100}"
_DIRECTORY = r"(0|[1-9][0-9]*)(\.[0-9a-f]{10,64}(\.[1-9][0-9]{0,5})?)?"


@dataclass(frozen=True)
class File:
    """A kind of files.

    Attributes:
        named: What the pages call it; they must contain this text.
        pattern: A regular expression of the path in the store or in the remote.
        sections: The sections that name its members. None if it is no JSON.
        free: The members that have names of the user, or of things.
    """

    named: str
    pattern: str
    sections: tuple[str, ...] | None = None
    free: tuple[str, ...] = ()


_OF_CHECKPOINT = (
    File("blobs/<digest>", f"blobs/{_DIGEST}"),
    File(
        "manifest.json",
        "(manifest|plain).json",
        ("manifest.json", "Health", "Ranks", "Leaves", "Files", "Layout"),
        ("metrics", "metadata", "parts"),
    ),
    File("annotations.json", "annotations.json", ("annotations.json",), ("metrics",)),
    File("damaged.json", "damaged.json", ("damaged.json",)),
    File("elsewhere.json", "elsewhere.json", ("`elsewhere.json`",)),
)
_SETTINGS = ("config.json", "Which rules apply", "Other settings")
_OF_STORE = (
    File("  store.json", "store.json", ("store.json",)),
    File("  config.json", "config.json", _SETTINGS, ("remotes", "retention_by_run", "set_by")),
    File("blobs/ab/<digest>", f"blobs/[0-9a-f]{{2}}/{_DIGEST}"),
    File("refs/<tag>", f"refs/{_RUN}"),
    File("pins/<name>.json", rf"pins/{_RUN}\.json", ("Pins",)),
    File("locks/run-<run>, tags, trash, store", f"locks/(run-{_RUN}|tags|trash|store)"),
    File(
        "locks/evaluation-<id>.<metric>.<number>",
        rf"locks/evaluation-{_DIGEST}\.[0-9a-f]{{16}}\.[1-9][0-9]{{0,8}}(\.over)?",
        ("Evaluations",),
    ),
    File("quarantine/<digest>.<inode>", rf"quarantine/{_DIGEST}\.[0-9]+"),
    File("verified.json", "verified.json", ("quarantine/ and verified.json",)),
    File("events.jsonl, events.jsonl.1", r"events\.jsonl(\.1)?", ("events.jsonl",)),
    File(
        "remotes/<name>.json",
        rf"remotes/(?!\.){_RUN}\.json",
        ("remotes/<name>.json",),
        ("blobs", "documents", "checkpoints"),
    ),
    File(
        "remotes/.mirror.json",
        r"remotes/\.mirror\.json",
        ("remotes/.mirror.json",),
        ("documents", "former", "missing", "sequences"),
    ),
    File("`<digest>.<offset>.<length>`", rf"remotes/\.cache/{_DIGEST}\.[0-9]+\.[0-9]+"),
    File("catalog.db  (-wal, -shm, -journal)", r"catalog\.db(-wal|-shm|-journal)?"),
    File("`reserve/space-0` to `reserve/space-7`", "reserve/space-[0-7]"),
)
_OF_REMOTE = (
    File("remote.json", "remote.json", ("remote.json",)),
    File("blobs/ab/<name>", rf"blobs/[0-9a-f]{{2}}/{_DIGEST}(\.[1-9][0-9]{{0,8}})?"),
    File("refs/<tag>.json", rf"refs/{_RUN}\.json", ("Tags and pins",)),
    File("pins/<name>.json", rf"pins/{_RUN}\.json", ("Pins",)),
    File("intents/<uuid>.json", rf"intents/{_UUID}\.json", ("intents/",)),
    File(
        "claims/<store>/<run>/<step>/<id>/<uuid>.json",
        rf"claims/[0-9a-f-]{{36}}/{_RUN}/[0-9]+/{_DIGEST}/{_UUID}\.json",
        ("claims/",),
    ),
    File("runs/<run>/owner.json", rf"runs/{_RUN}/owner\.json", ("runs/",)),
    File("condemned.json", "condemned.json", ("condemned.json",), ("burnt", "condemned", "deleting")),
    File("<step>/<id>/dropped", rf"checkpoints/{_RUN}/[0-9]+/{_DIGEST}/dropped"),
    File("`.incoming/` and `.lock`", r"\.lock|\.incoming/.*"),
)
_DIRECTORIES = (
    (rf"checkpoints/{_RUN}/{_DIRECTORY}", "checkpoints/<run>/<step>.<short>[.<generation>]/"),
    (rf"trash/{_RUN}@{_DIRECTORY}\.[0-9a-f]{{12}}(\.undo-[0-9]+)?", "trash/<run>@<directory>.<unique>"),
)
_AT_REMOTE = rf"checkpoints/{_RUN}/[0-9]+/{_DIGEST}"


def unnamed(root: Path, *, is_remote: bool) -> list[str]:
    """Return the names of files and members that no page of the format has, in a store or a remote in a directory."""
    files = [(file.pattern, file) for file in (_OF_REMOTE if is_remote else _OF_STORE)]
    folders = [_AT_REMOTE] if is_remote else [pattern for pattern, _ in _DIRECTORIES]
    files += [(f"{folder}/{file.pattern}", file) for folder in folders for file in _OF_CHECKPOINT]
    missing = [f"the pages do not have {text}" for text in _named_texts() if text not in _TEXT]
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        found = next((file for pattern, file in files if re.fullmatch(pattern, name)), None)
        if found is None:
            missing.append(f"no page names the file {name}")
        elif found.sections is not None:
            allowed = set().union(*map(_words, (*found.sections, "Digests of small files")))
            members = {member for document in _documents(path) for member in _members(document, found.free)}
            missing += [f"no page names the member {member} of {name}" for member in sorted(members - allowed)]
    return missing


def _named_texts() -> Iterator[str]:
    yield from (file.named for file in (*_OF_STORE, *_OF_REMOTE, *_OF_CHECKPOINT))
    yield from (text for _, text in _DIRECTORIES)


def _documents(path: Path) -> list[Any]:
    lines = path.read_bytes().splitlines() if path.name.startswith("events.jsonl") else [path.read_bytes()]
    return [json.loads(line) for line in lines]


def _members(value: Any, free: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of the members of a document, without those of nodes of a state."""
    if isinstance(value, list):
        for item in value:
            yield from _members(item, free)
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            if name in free and isinstance(item, dict):  # its names are not of the format, but those below may be
                for inner in item.values():
                    yield from () if name in ("metrics", "metadata") else _members(inner, free)
            elif name != "manifest" or isinstance(item, dict):
                yield from _members(item, free)


def _words(title: str) -> set[str]:
    """Return the names that a section of a page has: in backticks, and as members of its examples."""
    sections = [
        match[1]
        for page in _PAGES.values()
        for match in re.finditer(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    ]
    if not sections:
        raise LookupError(f"no page has a section {title}")
    text = "\n".join(sections)
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {*quoted, *re.findall(r'"(\w+)":', text)}
