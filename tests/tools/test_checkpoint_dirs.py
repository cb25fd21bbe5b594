from __future__ import annotations

import json
from pathlib import Path

from tests.support.checkpoint_dirs import (
    blobs_dir,
    checkpoint_dir,
    checkpoint_dirs,
    dir_of_id,
    name_in_store,
    path_in_store,
    step_names,
)

OLD, NEW = "a" * 32, "b" * 32


def _put(directory: Path, sequence: int, digest: str, *, compacted: bool = False) -> Path:
    directory.mkdir(parents=True)
    document = {"digest": f"xxh3-{digest}", "manifest": {"sequence": sequence, "created": "2026-01-01T00:00:00Z"}}
    (directory / ("plain.json" if compacted else "manifest.json")).write_text(json.dumps(document))
    if compacted:
        encoding = {"digest": f"xxh3-{'c' * 32}", "manifest": {"checkpoint": f"xxh3-{digest}"}}
        (directory / "manifest.json").write_text(json.dumps(encoding))
    return directory


def test_a_name_with_the_step_alone_is_found(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    directory = _put(run / "3", 1, OLD)
    _put(run / "33.aaaaaaaaaa", 2, OLD)
    assert checkpoint_dir(tmp_path, "main", 3) == directory
    assert checkpoint_dir(str(tmp_path), "main", "3") == directory
    assert blobs_dir(tmp_path, "main", 3) == directory / "blobs"


def test_the_newest_of_a_step_is_found(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    new = _put(run / f"3.{NEW[:10]}", 7, NEW)
    newer_form = _put(run / f"3.{NEW[:10]}.2", 7, NEW, compacted=True)
    old = _put(run / f"3.{OLD[:10]}", 5, OLD)
    draft = _put(run / "3", 2, "c" * 32)
    assert checkpoint_dirs(tmp_path, "main", 3) == [draft, old, new, newer_form]
    assert checkpoint_dir(tmp_path, "main", 3) == newer_form


def test_the_newest_form_of_an_id_is_found(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    _put(run / f"3.{OLD[:10]}", 5, OLD)
    compacted = _put(run / f"3.{OLD[:10]}.1", 5, OLD, compacted=True)
    new = _put(run / f"3.{NEW[:10]}", 7, NEW)
    assert dir_of_id(tmp_path, "main", 3, f"xxh3-{OLD}") == compacted
    assert dir_of_id(tmp_path, "main", 3, f"xxh3-{NEW}") == new
    assert dir_of_id(tmp_path, "main", 3, f"xxh3-{'c' * 32}") == new


def test_a_generation_counts_as_a_number(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    forms = [_put(run / f"3.{NEW[:10]}{generation}", 7, NEW) for generation in ("", ".9", ".10")]
    assert checkpoint_dirs(tmp_path, "main", 3) == forms


def test_a_directory_without_a_manifest_counts_least(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    directory = _put(run / f"3.{OLD[:10]}", 0, OLD)
    torn = _put(run / f"3.{NEW[:10]}", 9, NEW)
    (torn / "manifest.json").write_text("{")
    assert checkpoint_dirs(tmp_path, "main", 3) == [torn, directory]


def test_a_step_without_a_checkpoint_has_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert checkpoint_dirs(tmp_path, "main", 3) == []
    assert checkpoint_dir(tmp_path, "main", 3) == tmp_path / "checkpoints" / "main" / "3"


def test_other_names_of_a_run_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "main"
    for name in ("3", f"12.{OLD[:10]}", f"12.{NEW[:10]}", "notes", "03", "4.abc", f"5.{OLD[:10]}.0", ".new"):
        (run / name).mkdir(parents=True)
    assert step_names(tmp_path, "main") == {3, 12}
    assert step_names(tmp_path, "other") == set()


def test_a_path_in_a_store_is_found_by_the_step(tmp_path: Path) -> None:
    directory = _put(tmp_path / "checkpoints" / "main" / f"3.{OLD[:10]}", 1, OLD)
    assert path_in_store(tmp_path, "checkpoints/main/3") == directory
    assert path_in_store(tmp_path, "checkpoints/main/3/blobs/x") == directory / "blobs" / "x"
    assert path_in_store(tmp_path, "checkpoints/main/x") == tmp_path / "checkpoints" / "main" / "x"
    assert path_in_store(tmp_path, "checkpoints/main") == tmp_path / "checkpoints" / "main"
    assert path_in_store(tmp_path, "refs/3") == tmp_path / "refs" / "3"
    assert name_in_store(tmp_path, "main", 3) == f"checkpoints/main/3.{OLD[:10]}"
