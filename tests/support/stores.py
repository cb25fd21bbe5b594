"""Look at a store from outside: names, inodes, links, and what the catalog counts."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from pathlib import Path

from ckstore.model.manifest.manifest import Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import key_of


def names_by_inode(root: Path) -> dict[int, list[Path]]:
    """Return every name of every regular file in the store by inode; not the catalog's files, nor what verify keeps."""
    names: dict[int, list[Path]] = {}
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            if not file.startswith(("catalog.db", "verified.json", "events.jsonl")) and not path.is_symlink():
                names.setdefault(path.stat().st_ino, []).append(path)
    return names


def check_links(root: Path) -> None:
    """Every inode has as many links as the store has names for it."""
    for names in names_by_inode(root).values():
        count = names[0].stat().st_nlink
        assert count == len(names), f"{count} links, names: {names}"


def check_blobs(root: Path) -> None:
    """Every blob has the name that its bytes give, wherever it lies."""
    from ckstore.objects.blobs import digest_of_file

    for names in names_by_inode(root).values():
        blob = next((path for path in names if path.parent.name == "blobs" or path.parent.parent.name == "blobs"), None)
        if blob is not None:
            assert digest_of_file(blob, blob.name) == blob.name
            assert {path.name for path in names if "new-" not in path.name} == {blob.name}


def references_of_manifests(root: Path) -> Counter[str]:
    """Return how many published checkpoints, each generation for itself, name each blob, from the directories alone."""
    counts: Counter[str] = Counter()
    for path in root.glob("checkpoints/*/*/manifest.json"):
        manifest, _ = _parsed(path)
        named = {blob.digest for blob in manifest.stored}
        owned = set(os.listdir(path.parent / "blobs"))
        if path.with_name("elsewhere.json").exists():  # a remote has what it lacks
            named &= owned
        assert named == owned, f"{path.parent} does not own exactly its blobs"
        counts.update(named)
    return counts


def _parsed(path: Path) -> tuple[Manifest, str]:
    return parse_manifest(path.read_bytes(), where=str(path), plain=path.with_name("plain.json").read_bytes)


def check_names(root: Path) -> None:
    """Every directory is named after the run, the step and the id of its manifest, and no two have one generation."""
    seen: set[tuple[str, int]] = set()
    for path in root.glob("checkpoints/*/*/manifest.json"):
        manifest, id = _parsed(path)
        key = key_of(path.parent.parent.name, path.parent.name)
        assert key is not None
        assert not key.is_draft
        assert key.fits(manifest.run, manifest.step, id)
        assert (id, key.generation) not in seen
        seen.add((id, key.generation))


def references_of_catalog(root: Path, catalog: Path | None = None) -> Counter[str]:
    """Return how many checkpoints use each blob, as the catalog counts them; by default the one in the store."""
    connection = sqlite3.connect(f"file:{catalog or root / 'catalog.db'}?mode=ro", uri=True)
    try:
        query = "SELECT digest, reference_count FROM blob_references WHERE reference_count > 0"
        return Counter(dict(connection.execute(query).fetchall()))
    finally:
        connection.close()


def check_store(root: Path, catalog: Path | None = None) -> None:
    """All invariants that hold when no process is at work in the store and it was opened since.

    `catalog` is that of a user, if it is not in the store.
    """
    check_links(root)
    check_blobs(root)
    check_names(root)
    assert references_of_catalog(root, catalog) == references_of_manifests(root)
    assert os.listdir(root / "staging") == []
    # What another process dropped waits there to be brought back.
    assert [name for name in os.listdir(root / "trash") if ".undo-" not in name] == []


def disk_bytes(root: Path) -> int:
    """Return the bytes that the blobs of a store take, each inode once."""
    seen: dict[int, int] = {}
    for folder, _, files in os.walk(root):
        for file in files:
            if file.startswith(("xxh3-", "blake3-")):
                status = os.stat(os.path.join(folder, file))
                seen[status.st_ino] = status.st_size
    return sum(seen.values())
