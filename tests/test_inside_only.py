"""In objects/ and ops/ no call gives the system a path in a store: only `ckstore.fs` does, one directory at a time.

Nor does training/ give it one in a folder that is imported, and no room but fs/ opens a file by a path to read it.

A look at the sources. What the acts really give the kernel is looked at in tests/faults/test_paths.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "ckstore"
ROOMS = ("objects", "ops", "training")
READERS = ("catalog", "containers", "integrations", "objects", "ops", "ranks", "tensors", "training")

BY_PATH = frozenset(
    {"access", "chdir", "chmod", "chown", "lchown", "link", "listdir", "lstat", "makedirs", "mkdir", "mkfifo", "mknod"}
    | {
        "open",
        "readlink",
        "remove",
        "removedirs",
        "rename",
        "renames",
        "replace",
        "rmdir",
        "scandir",
        "stat",
        "statvfs",
    }
    | {"symlink", "truncate", "unlink", "utime", "walk", "fwalk", "getxattr", "setxattr", "pathconf"}
)
"""Functions of ``os`` that take a path."""
OF_OS_PATH = frozenset(
    {"exists", "lexists", "isdir", "isfile", "islink", "ismount", "getsize", "getmtime", "realpath", "samefile"}
)
METHODS = frozenset(
    {"exists", "is_dir", "is_file", "is_symlink", "is_mount", "iterdir", "stat", "lstat", "read_text", "read_bytes"}
    | {"write_text", "write_bytes", "unlink", "mkdir", "rmdir", "rename", "symlink_to", "hardlink_to", "resolve"}
    | {"glob", "rglob", "touch", "chmod", "lchmod", "owner", "group", "samefile", "readlink", "expanduser", "walk"}
)
"""Methods of `pathlib.Path` that go to the disk."""
ROOM_OF_CALLS = frozenset({"dirfd_stat", "links", "files", "entry", "e"})
"""What has functions or methods of these names and goes by descriptors: the room, and entries of a listing."""

EXCEPTIONS = {
    # The root of a store, by the path that its user named: it has no directory of the store above it.
    "ops/api_calls.py: os.stat(root)": "the root",
    "ops/context.py: os.access(self.layout.path, os.W_OK)": "the root",
    "ops/index/catalog_place.py: os.stat(root)": "the root",
    "ops/report/doctor.py: os.stat(context.layout.path)": "the root",
    "ops/report/doctor.py: os.stat(layout.path)": "the root",
    "ops/open/opening.py: folder.is_dir()": "the root of a store that is not made yet, or what is above it",
    "ops/open/opening.py: os.access(root, os.W_OK)": "the root",
    "ops/open/opening.py: os.stat(place.path)": "the root",
    # The catalog: SQLite knows paths only.
    "ops/index/catalog_place.py: catalog.owner()": "asks SQLite",
    "ops/index/catalog_place.py: folder.is_dir()": "the directory of the catalog, on this host",
    "ops/index/catalog_place.py: path.is_dir()": "the file of the catalog, on this host",
    "ops/index/catalog_place.py: wanted.parent.resolve()": "the directory of the catalog, on this host",
    "ops/report/doctor.py: path.exists()": "the file of the catalog",
    'ops/report/metrics.py: open(fd, "wb")': "a descriptor",
    'ops/report/html.py: asset.read_text(encoding="utf-8")': "a part of the page, in the package",
    "ops/report/metrics.py: os.replace(temporary, path)": "a file that the caller names, outside the store",
    "ops/report/metrics.py: os.unlink(temporary)": "the same",
    "ops/report/metrics.py: os.stat(path)": "the same",
    "ops/report/metrics.py: path.write_bytes(data)": "the same: a device",
    'ops/free/gc.py: os.stat(f"{context.catalog.path}{suffix}")': "the files of the catalog",
    "ops/open/reindex.py: os.stat(path, follow_symlinks=False)": "the file of the catalog",
    "training/provenance.py: Path(file).resolve()": "the script that runs",
    # Places outside a store.
    "ops/verify/blob_copies.py: os.listdir(path)": "a source of a repair",
    "ops/verify/blob_copies.py: path.resolve()": "a source of a repair",
    "ops/read/export_check.py: path.is_dir()": "an export, outside the store",
    "ops/read/export_check.py: (folder / record_name).exists()": "an export, outside the store",
    "ops/read/formats/model_files.py: os.path.realpath(path)": "files that are added to an export",
    "ops/read/formats/model_files.py: path.iterdir()": "files that are added to an export",
    "ops/save/gather.py: path.resolve()": "files that are committed",
    "ops/save/gather.py: path.resolve(strict=True)": "files that are committed",
    "ops/save/gather.py: roots[0].is_dir()": "files that are committed",
    "ops/save/gather.py: store.resolve()": "the root",
    "ops/open/opening.py: os.mkdir(path)": "a directory above the root",
    "ops/open/opening.py: os.scandir(folder)": "a directory above the root",
    'ops/save/step_author.py: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")': "the kernel's",
    'ops/save/step_author.py: os.stat(f"/proc/{event.pid}")': "the kernel's",
}
_APART = ROOT / "training" / "resume_check"
"""It works in a temporary folder of its own, and on the program that it checks, and reaches a store by `Store`."""


OPENED = {
    "integrations/trainer_state.py: path.read_bytes()": "a file that the Trainer has just written, in a new directory",
    "integrations/fsspec/transaction.py: local.open(mode)": "a file of this process's own transaction",
    'ops/report/metrics.py: open(fd, "wb")': "a descriptor",
    'ops/report/html.py: asset.read_text(encoding="utf-8")': "a part of the page, in the package",
    'ranks/rank_identity.py: Path(f"/proc/{pid}/stat").read_bytes()': "the kernel's",
    'ops/save/step_author.py: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")': "the kernel's",
}
"""Calls outside fs/ that open a file by its path and read it."""
_OPENERS = frozenset({"open", "read_text", "read_bytes"})
_NOT_OF_PATHS = ("Store", "self", "staging", "blobs", "store", "DirectoryLock")
"""What has a method ``open`` that is not that of a path."""


def _sources(room: str) -> list[Path]:
    return [path for path in sorted((ROOT / room).glob("**/*.py")) if not path.is_relative_to(_APART)]


def _is_by_descriptor(call: ast.Call) -> bool:
    """Whether the first argument is a descriptor, or a name in the directory of one and no symlink is followed."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Attribute) and first.attr == "fd":
        return True
    if isinstance(first, ast.Name) and first.id == "fd":
        return True
    return any(keyword.arg == "dir_fd" for keyword in call.keywords)


def _goes_by_path(call: ast.Call) -> bool:
    function = call.func
    if any(keyword.arg in {"dir_fd", "src_dir_fd", "dst_dir_fd"} for keyword in call.keywords):
        return any("/" in ast.unparse(argument) for argument in call.args)
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    of = ast.unparse(function.value)
    if of == "os":
        return function.attr in BY_PATH and not _is_by_descriptor(call)
    if of == "os.path":
        return function.attr in OF_OS_PATH
    return of == "shutil" or (function.attr in METHODS and of not in ROOM_OF_CALLS)


def by_path(source: str) -> set[str]:
    """Return the calls in a module that go to the disk by a path."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {ast.unparse(call).replace("'", '"') for call in calls if _goes_by_path(call)}


def test_only_the_room_of_system_calls_goes_by_paths_and_the_exceptions_are_named() -> None:
    found = set()
    for room in ROOMS:
        for path in _sources(room):
            found |= {f"{path.relative_to(ROOT)}: {call}" for call in by_path(path.read_text(encoding="utf-8"))}

    assert found - EXCEPTIONS.keys() == set(), "go by ckstore.fs.dirfd_stat, or say why not"
    assert EXCEPTIONS.keys() - found == set(), "these exceptions are no more"


def opened_by_path(source: str) -> set[str]:
    """Return the calls in a module that open a file by its path."""
    found = set()
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        of = ast.unparse(function.value).split(".")[0] if isinstance(function, ast.Attribute) else ""
        if name in _OPENERS and of not in _NOT_OF_PATHS:
            found.add(ast.unparse(call).replace("'", '"'))
    return found


def test_no_room_but_that_of_system_calls_opens_a_file_by_its_path_to_read_it() -> None:
    found = set()
    for room in READERS:
        for path in _sources(room):
            calls = opened_by_path(path.read_text(encoding="utf-8"))
            found |= {f"{path.relative_to(ROOT)}: {call}" for call in calls}

    assert found - OPENED.keys() == set(), "read by ckstore.fs.files or ckstore.fs.tree, or say why not"
    assert OPENED.keys() - found == set(), "these exceptions are no more"
    assert opened_by_path("Path(x).open(); open(x); os.open(x); x.read_text()") >= {"Path(x).open()", "open(x)"}


def test_a_call_by_path_is_found() -> None:
    for call in (
        "os.unlink(x)",
        "os.path.lexists(x)",
        "path.is_dir()",
        "shutil.rmtree(x)",
        "open(x)",
        "os.stat(str(x))",
    ):
        assert by_path(call) == {call}
    for call in (
        "os.fstat(fd)",
        "os.utime(fd, ns=x)",
        "os.listdir(lock.fd)",
        "dirfd_stat.exists(x)",
        "links.unlink(x)",
    ):
        assert by_path(call) == set()
    assert by_path("os.stat(x, dir_fd=fd, follow_symlinks=False)") == set()
    assert by_path('tree.link_file(path, f"{BLOBS}/{digest}", dir_fd=fd)') != set()
