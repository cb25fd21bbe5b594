"""Trees of files: made, drawn, compared."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from hypothesis import strategies as st

Tree = dict[str, tuple[str, int, bytes]]
"""For each relative path: kind, permission bits, and content, target, or nothing."""

_NAMES = st.one_of(
    st.sampled_from(["a", "b", "model.safetensors", "x.pt", "A", "config.json", ".hidden", "with space", "ü", "漢"]),
    st.binary(min_size=1, max_size=8)
    .map(lambda raw: bytes(b for b in raw if b >= 0x20 and b not in (0x2F, 0x7F)) or b"_")
    .map(os.fsdecode)
    .filter(lambda name: name not in (".", "..")),
)
_MODES = st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o640])
_CONTENTS = st.one_of(st.binary(max_size=200), st.integers(0, 300_000).map(lambda n: bytes(range(256)) * (n // 256)))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree of files, directories and symlinks."""
    tree: Tree = {}
    directories = [""]
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from(directories))
        path = f"{parent}/{draw(_NAMES)}" if parent else draw(_NAMES)
        if path in tree:
            continue
        kind = draw(st.sampled_from(["file", "file", "file", "directory", "symlink"]))
        if kind == "directory":
            tree[path] = (kind, draw(st.sampled_from([0o755, 0o700, 0o775])), b"")
            directories.append(path)
        elif kind == "file":
            tree[path] = (kind, draw(_MODES), draw(_CONTENTS))
        else:
            tree[path] = (kind, 0, draw(st.sampled_from([b"a", b"../x", b"/etc/passwd", b"nowhere"])))
    return tree


def make(tree: Tree, root: Path) -> Path:
    """Make the tree at `root`."""
    root.mkdir()
    for path, (kind, mode, content) in tree.items():
        where = root / path
        if kind == "directory":
            where.mkdir()
        elif kind == "symlink":
            where.symlink_to(os.fsdecode(content))
        else:
            where.write_bytes(content)
            where.chmod(mode)
    for path, (kind, mode, _) in reversed(tree.items()):
        if kind == "directory":
            (root / path).chmod(mode)
    return root


def look(root: Path) -> Tree:
    """Return the tree below `root`; the content of a file by its SHA-256."""
    found: Tree = {}
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(folder, name)
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            if path.is_symlink():
                entry = ("symlink", 0, os.fsencode(os.readlink(path)))
            elif path.is_dir():
                entry = ("directory", mode, b"")
            else:
                entry = ("file", mode, hashlib.sha256(path.read_bytes()).digest())
            found[str(path.relative_to(root))] = entry
    return found
