"""What differs between the committed files of two checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from ckstore import Store
from ckstore.model.manifest.committed_files import FileChange
from tests.support.trees import Tree, make, trees

MIB = 2**20


def committed(store: Store, tree: Tree, root: Path, step: int) -> None:
    if tree:
        store.commit(make(tree, root), step)
    else:
        store.save({}, step)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.init(tmp_path_factory.mktemp("files") / "store", chunk_bytes=MIB)


@pytest.mark.property
@given(one=trees(), other=trees())
def test_a_diff_lists_exactly_the_paths_that_differ(one: Tree, other: Tree, shared: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps = [1 + (info.step if (info := shared.latest()) else 0) + i for i in range(2)]
        for tree, step in zip((one, other), steps, strict=True):
            committed(shared, tree, Path(folder, str(step)), step)

    found = shared.diff(*steps).files

    differing = {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    assert {change.path: change.kind for change in found} == {
        path: "added" if path not in one else "removed" if path not in other else "changed" for path in differing
    }
    assert shared.diff(steps[0], steps[0]).files == ()
    back = {(change.path, change.after, change.before) for change in shared.diff(steps[1], steps[0]).files}
    assert back == {(change.path, change.before, change.after) for change in found}


def test_how_much_of_a_file_changed_is_told(shared: Store, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(bytes(3 * MIB))
    file.chmod(0o600)
    shared.commit(file, run="log")
    with file.open("r+b") as opened:
        opened.seek(MIB + 5)
        opened.write(b"x")
    shared.commit(file, run="log")
    file.chmod(0o644)
    shared.commit(file, run="log")

    first, second = (shared.diff(f"log@{step}", f"log@{step + 1}") for step in range(2))

    (content,) = first.files
    assert (content.path, content.kind, content.changed_bytes) == ("log", "changed", MIB)
    (mode,) = second.files
    assert mode.before is not None
    assert mode.after is not None
    assert (mode.before.mode, mode.after.mode, mode.changed_bytes) == (0o600, 0o644, 0)
    assert first
    assert second
    assert isinstance(mode, FileChange)
