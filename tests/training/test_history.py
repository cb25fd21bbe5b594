"""A folder of checkpoints is imported with steps, times and metrics, goes on after a kill, and is deleted only then."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckstore import BadInput, Best, Budget, CannotLoad, CkstoreWarning, RetentionPolicy, RunInUse, StepExists, Store
from ckstore.fs import dirfd_stat, files, tree
from ckstore.fs.dirfd_stat import AnyPath
from ckstore.training import history, import_history
from ckstore.training.history import find_checkpoints
from tests.support.look import files_of
from tests.support.requirements import CRASH_FULL
from tests.support.trees import look

ROOT = Path(__file__).parents[2]


def checkpoint(path: Path, step: int, size: int = 20_000) -> None:
    """What a Trainer leaves: a frozen half, a trained half, its log."""
    path.mkdir(parents=True)
    frozen, trained = np.arange(size, dtype=np.float32), np.arange(size, dtype=np.float32) + step
    save_file({"frozen": frozen, "trained": trained}, path / "model.safetensors")
    log: list[dict[str, Any]] = [{"step": 1, "loss": 9.0}, {"step": step, "loss": 1 / step, "epoch": 1.0}]
    (path / "trainer_state.json").write_text(json.dumps({"log_history": [*log, {"step": step, "eval_loss": 2.5}]}))
    for file in path.iterdir():
        os.utime(file, (1_700_000_000 + step, 1_700_000_000 + step))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1000, 500, 1500):
        checkpoint(tmp_path / "out" / f"checkpoint-{step}", step)
    (tmp_path / "out" / "runs").mkdir()
    return tmp_path / "out"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def test_a_folder_comes_in_by_step_with_times_and_metrics_and_every_file_comes_back(
    tmp_path: Path, folder: Path, store: Store
) -> None:
    steps: list[tuple[int, int]] = []
    report = import_history(store, folder, "gpt", progress=lambda done, total: steps.append((done, total)))

    assert [info.name for info in report.imported] == ["gpt@500", "gpt@1000", "gpt@1500"]
    assert report.skipped == {"runs": "no step in its name"}
    assert steps[-1] == (report.source_bytes, report.source_bytes)
    assert report.new_bytes < 0.75 * report.source_bytes
    info = store.info("gpt@500")
    assert info.metrics == {"loss": 1 / 500, "epoch": 1.0, "eval_loss": 2.5}
    assert info.metadata["imported"]["name"] == "checkpoint-500"
    assert info.metadata["imported"]["time"] == "2023-11-14T22:21:40.000000Z"
    for step in (500, 1000, 1500):
        store.checkout(f"gpt@{step}", tmp_path / str(step))
        assert look(tmp_path / str(step)) == look(folder / f"checkpoint-{step}")
    again = import_history(store, folder, "gpt")
    assert (len(again.imported), len(again.present)) == (0, 3)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["checkpoint-1000/trainer_state.json", "latest"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_metrics_and_the_latest_that_cannot_be_read_end_the_import_and_come_along_in_the_next(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    (folder / "latest").write_text("checkpoint-500")
    opened = dirfd_stat.open_at

    def refused(path: AnyPath, *rest: Any, **options: Any) -> int:
        if str(path) == str(folder / name):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_at", refused)
        patch.setattr(tree, "open_at", refused)
        with pytest.raises(BadInput, match=f"{name} cannot be read: {os.strerror(code)}"):
            import_history(store, folder)
    assert store.checkpoints() == []
    import_history(store, folder)

    assert [info.step for info in store.checkpoints()] == [1000, 1500, 500]
    assert all("loss" in info.metrics for info in store.checkpoints())


@pytest.mark.parametrize(
    "make, kind",
    [
        (os.mkfifo, "a named pipe instead of a file"),
        (lambda path: path.symlink_to("/dev/zero"), "a symlink instead of a file"),
        (lambda path: path.symlink_to("checkpoint-500"), "a symlink instead of a file"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 100 * 2**30), "larger than 4096 bytes"),
    ],
    ids=["pipe", "zeros", "symlink", "sparse"],
)
@pytest.mark.usefixtures("descriptors_may_leak")
def test_a_latest_that_is_no_small_file_is_left_alone_and_named(
    folder: Path, store: Store, make: Callable[[Path], object], kind: str
) -> None:
    make(folder / "latest")

    report = import_history(store, folder)

    assert [info.step for info in report.imported] == [500, 1000, 1500]
    assert report.skipped["latest"].startswith(kind)


def test_a_log_that_is_a_symlink_gives_no_metrics_and_is_kept_as_a_symlink(folder: Path, store: Store) -> None:
    secret = folder.parent / "secret.json"
    secret.write_text('{"log_history": [{"step": 500, "secret": 42.0}]}')
    state = folder / "checkpoint-500" / "trainer_state.json"
    state.unlink()
    state.symlink_to(secret)

    said = "500 is imported without metrics: its trainer_state.json is a symlink, and was stored but not read"
    with pytest.warns(CkstoreWarning, match=f"^checkpoint-{said}$"):
        import_history(store, folder)

    assert store.info(500).metrics == {}
    assert {file.path: file.kind for file in files_of(store, 500)}["trainer_state.json"] == "symlink"


@pytest.mark.parametrize("name", ["trainer_state.json", "a/pipe"])
def test_a_checkpoint_with_a_pipe_is_left_alone_and_the_others_come_in(folder: Path, store: Store, name: str) -> None:
    (folder / "checkpoint-500" / "a").mkdir()
    (folder / "checkpoint-500" / name).unlink(missing_ok=True)
    os.mkfifo(folder / "checkpoint-500" / name)

    report = import_history(store, folder)

    assert [info.step for info in report.imported] == [1000, 1500]
    assert report.skipped["checkpoint-500"] == f"incomplete: {name}: it is a named pipe"


def test_only_what_a_stopped_deletion_left_is_deleted(folder: Path, store: Store) -> None:
    kept = folder.parent / "kept"
    kept.mkdir()
    (kept / "data").write_text("mine")
    (folder / ".ckstore-deleting-x").symlink_to(kept)
    (folder / ".ckstore-deleting-checkpoint-1").mkdir()
    (folder / ".ckstore-deleting-checkpoint-1" / "half").write_text("")

    report = import_history(store, folder, delete_sources=True)

    assert len(report.deleted) == 3
    assert (kept / "data").read_text() == "mine"
    assert sorted(os.listdir(folder)) == [".ckstore-deleting-x", "runs"]
    assert report.skipped[".ckstore-deleting-x"] == "a symlink, not left by an import"


def test_a_number_of_a_million_digits_in_a_log_costs_nothing(folder: Path, store: Store) -> None:
    digits_by_python = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        state = folder / "checkpoint-500" / "trainer_state.json"
        state.write_text('{"log_history": [{"step": 500, "loss": %s}]}' % ("7" * 3_000_000))
        begin_s = time.process_time()
        import_history(store, folder)
    finally:
        sys.set_int_max_str_digits(digits_by_python)

    assert store.info(500).metrics == {}
    assert time.process_time() - begin_s < 5


def test_what_is_no_log_of_a_trainer_gives_no_metrics(folder: Path, store: Store) -> None:
    (folder / "latest").mkdir()
    for step in (500, 1000):
        (folder / f"checkpoint-{step}" / "trainer_state.json").unlink()
    (folder / "checkpoint-500" / "trainer_state.json").mkdir()
    (folder / "checkpoint-1500" / "trainer_state.json").write_text("[]")
    (folder / "step=2000.ckpt").write_bytes(b"1")

    report = import_history(store, folder)

    assert [dict(info.metrics) for info in report.imported] == [{}] * 4


def test_a_file_with_a_foreign_class_comes_in_as_bytes_and_is_refused_by_name_when_loaded_and_runs_nothing(
    tmp_path: Path, folder: Path, store: Store
) -> None:
    torch = pytest.importorskip("torch")
    ran = tmp_path / "ran"
    torch.save({"weights": torch.ones(3), "hook": _Runs(str(ran))}, folder / "checkpoint-500" / "extra.pt")
    import_history(store, folder, "gpt")
    with pytest.raises(CannotLoad) as caught:
        store.load("gpt@500", file="extra.pt")
    store.checkout("gpt@500", tmp_path / "back")

    assert caught.value.refused == {"hook": "posix.mkdir cannot be loaded"}
    assert look(tmp_path / "back") == look(folder / "checkpoint-500")
    assert not ran.exists()
    torch.load(tmp_path / "back" / "extra.pt", weights_only=False)
    assert ran.exists(), "the file is harmless, so the test shows nothing"


class _Runs:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_names_of_the_usual_trainers_are_understood_and_a_latest_file_names_the_last(tmp_path: Path) -> None:
    names = ["checkpoint-500", "step-400", "global_step300", "iter_0000200"]
    for name in names:
        checkpoint(tmp_path / name, 1)
    for name in ("epoch=1-step=100.ckpt", "epoch=1-step=100-v1.ckpt", "last.ckpt", "notes.txt"):
        (tmp_path / name).write_bytes(b"1")
    os.utime(tmp_path / "epoch=1-step=100.ckpt", (1, 1))
    (tmp_path / "link-7").symlink_to("checkpoint-500")
    (tmp_path / "latest").write_text("global_step300\n")

    found, skipped = find_checkpoints(tmp_path)

    assert [source.step for source in found] == [100, 200, 400, 500, 300]
    assert found[0].path.name == "epoch=1-step=100-v1.ckpt"
    assert set(skipped) == {"epoch=1-step=100.ckpt", "last.ckpt", "notes.txt", "link-7"}
    with pytest.raises(BadInput, match="cannot be listed"):
        find_checkpoints(tmp_path / "none")


def test_of_two_with_one_step_a_complete_one_is_taken_although_the_other_is_newer(folder: Path, store: Store) -> None:
    half = folder / "step-500"
    half.mkdir()
    (half / "checkpoint-is-incomplete.txt").touch()

    report = import_history(store, folder, delete_sources=True)

    assert [info.step for info in report.imported] == [500, 1000, 1500]
    assert report.skipped["step-500"] == "checkpoint-500 has the same step and is complete"
    assert sorted(os.listdir(folder)) == ["runs", "step-500"]


def test_sources_are_deleted_only_when_their_copy_is_verified(folder: Path, store: Store) -> None:
    report = import_history(store, folder, delete_sources=True)

    assert len(report.deleted) == 3
    assert os.listdir(folder) == ["runs"]
    assert store.verify().ok


def test_nothing_is_deleted_if_one_is_incomplete_or_the_store_would_drop_it(folder: Path, store: Store) -> None:
    sentinel = folder / "checkpoint-1500" / "checkpoint-is-incomplete.txt"
    sentinel.touch()
    with pytest.raises(BadInput, match="incomplete"):
        import_history(store, folder, delete_sources=True)
    assert store.checkpoints() == []
    report = import_history(store, folder)
    assert [info.step for info in report.imported] == [500, 1000]
    assert report.skipped["checkpoint-1500"].startswith("incomplete")
    sentinel.unlink()
    store.config.retention = RetentionPolicy(keep_last=1)
    with pytest.raises(BadInput, match="retention policy"):
        import_history(store, folder, delete_sources=True)
    assert len(list(folder.glob("checkpoint-*"))) == 3


@pytest.mark.parametrize(
    "setting, value, is_refused",
    [
        ("retention_by_run", {"sweep-*": RetentionPolicy(keep_last=1)}, True),
        ("retention_by_run", {"other": RetentionPolicy(keep_last=1)}, False),
        ("budget", Budget("1GB"), True),  # later saves may exceed it
    ],
)
def test_nothing_is_deleted_if_a_rule_of_the_run_or_a_budget_would_drop_it(
    folder: Path, store: Store, setting: str, value: object, is_refused: bool
) -> None:
    setattr(store.config, setting, value)

    refused = pytest.raises(BadInput, match=r"the store has a (retention policy|budget), which would drop")
    with refused if is_refused else nullcontext():
        import_history(store, folder, "sweep-7", delete_sources=True)

    assert len(list(folder.glob("checkpoint-*"))) == (3 if is_refused else 0)
    assert len(store.checkpoints()) == (0 if is_refused else 3)


@pytest.mark.parametrize(
    "setting, value, dropped",
    [
        ("retention", RetentionPolicy(keep_last=2), "main@500 dropped because it is not among the 2 newest"),
        ("retention", RetentionPolicy(keep_best=Best("loss", n=2)), "main@500 dropped because"),
        ("retention", RetentionPolicy(max_bytes="1KB"), "main@500 dropped because the run main is above"),
        ("retention_by_run", {"mai*": RetentionPolicy(keep_every=1000)}, "main@500 dropped because its step"),
        ("budget", Budget("1KB"), "main@500 dropped because the store is above its budget"),
        ("retention", RetentionPolicy(keep_last=3), ""),
        ("retention", RetentionPolicy(keep_best=Best("loss", n=3)), ""),
        ("retention_by_run", {"mai*": RetentionPolicy(keep_every=500)}, ""),
        ("retention_by_run", {"other": RetentionPolicy(keep_last=1)}, ""),
        ("budget", Budget("1GB"), ""),
    ],
)
def test_an_import_that_rules_would_undo_is_refused_before_anything_is_imported(
    folder: Path, store: Store, setting: str, value: object, dropped: str
) -> None:
    store.save({"x": 1}, step=1, run="other")
    setattr(store.config, setting, value)

    if dropped:
        with pytest.raises(BadInput, match=re.escape(dropped)) as refused:
            import_history(store, folder)
        assert f"store.config.{setting}" in refused.value.hint
        assert "nothing was imported" in refused.value.message
    else:
        assert len(import_history(store, folder).imported) == 3
        assert len(import_history(store, folder).present) == 3

    assert [info.step for info in store.checkpoints("main")] == ([] if dropped else [500, 1000, 1500])


def test_a_rule_that_is_set_after_an_import_refuses_only_to_import_more(folder: Path, store: Store) -> None:
    import_history(store, folder)
    store.config.retention = RetentionPolicy(keep_last=3)

    assert len(import_history(store, folder).present) == 3
    checkpoint(folder / "checkpoint-2000", 2000)
    with pytest.raises(BadInput, match="would drop 1 checkpoint after the import") as refused:
        import_history(store, folder)

    assert [info.step for info in store.checkpoints()] == [500, 1000, 1500]
    assert "ckstore config retention --run main --keep-last 4" in refused.value.command_hint
    store.config.retention_by_run = {"main": RetentionPolicy(keep_last=4)}
    assert [info.step for info in import_history(store, folder).imported] == [2000]
    assert [info.step for info in store.checkpoints()] == [500, 1000, 1500, 2000]


@pytest.mark.parametrize("process", ["that saved", "another"])
def test_nothing_is_imported_into_the_run_of_a_training(folder: Path, store: Store, process: str) -> None:
    store.config.retention = RetentionPolicy(keep_last=2)
    for step in (5000, 6000):
        store.save({"x": step}, step=step)
    importing = store if process == "that saved" else Store.open(store.path)

    with pytest.raises(RunInUse, match="the run main has checkpoints that were not imported, such as main@6000") as why:
        import_history(importing, folder)

    assert [info.name for info in store.checkpoints()] == ["main@5000", "main@6000"]
    assert "run='main-2'" in why.value.hint
    assert why.value.command_hint.startswith("--run main-2")
    store.config.retention = None
    assert len(import_history(importing, folder, "main-2").imported) == 3
    assert store.info("main@latest").step == 6000


def test_an_import_goes_on_with_new_checkpoints_until_a_training_continues_it(folder: Path, store: Store) -> None:
    import_history(store, folder)
    checkpoint(folder / "checkpoint-2000", 2000)
    with Store.open(store.path) as later:
        (info,) = import_history(later, folder).imported

    assert (info.step, info.parent, info.warnings) == (2000, store.info(1500).id, ())
    store.load(2000)
    store.save({"x": 3}, step=3000)
    assert len(import_history(store, folder).present) == 4
    checkpoint(folder / "checkpoint-2500", 2500)
    with pytest.raises(RunInUse, match="such as main@3000"):
        import_history(store, folder)
    assert store.info("latest").step == 3000


def test_a_training_that_begins_in_the_run_during_an_import_ends_it(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = history._listing

    def train_meanwhile(entries: list[tree.Entry]) -> str:
        if not store.checkpoints():
            code = "import sys, ckstore; ckstore.Store.open(sys.argv[1]).save({'x': 1}, step=5000)"
            subprocess.run([sys.executable, "-c", code, str(store.path)], cwd=ROOT, timeout=240, check=True)
        return listing(entries)

    monkeypatch.setattr(history, "_listing", train_meanwhile)
    with pytest.raises(RunInUse, match="main@5000") as refused:
        import_history(store, folder)

    assert "--parent" not in refused.value.command_hint
    assert [info.name for info in store.checkpoints()] == ["main@5000"]


def test_another_checkpoint_at_a_step_ends_the_import(folder: Path, store: Store) -> None:
    import_history(store, folder)
    shutil.rmtree(folder / "checkpoint-1000")
    checkpoint(folder / "checkpoint-1000", 1000, 30_000)

    with pytest.raises(StepExists) as conflict:
        import_history(store, folder, delete_sources=True)

    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-1000", "checkpoint-1500"}
    assert "run='main-2'" in conflict.value.hint
    assert conflict.value.command_hint.startswith("--run main-2")


_KILLED = """
import os, signal, sys
from ckstore import Store
from ckstore.training import history
store = Store.open(sys.argv[1])
left = [int(sys.argv[3])]
def kill(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
import shutil
for module, name in ((history, "_commit"), (history, "_delete_verified"), (shutil, "rmtree")):
    def wrap(real=getattr(module, name)):
        def called(*arguments, **options):
            kill()
            result = real(*arguments, **options)
            kill()
            return result
        return called
    setattr(module, name, wrap())
history.import_history(store, sys.argv[2], delete_sources=True)
os._exit(7)
"""


@pytest.mark.crash
@pytest.mark.parametrize("at", range(1, 19) if CRASH_FULL else [2, 4, 9])  # before and after each act of the import
def test_an_import_that_was_killed_goes_on_and_loses_nothing(
    at: int, tmp_path: Path, folder: Path, store: Store
) -> None:
    wanted = {step: look(folder / f"checkpoint-{step}") for step in (500, 1000, 1500)}
    words = [sys.executable, "-c", _KILLED, str(store.path), str(folder), str(at)]
    done = subprocess.run(words, cwd=ROOT, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL

    import_history(store, folder, delete_sources=True)

    assert os.listdir(folder) == ["runs"]
    for step, files_of_step in wanted.items():
        store.checkout(step, tmp_path / str(step))
        assert look(tmp_path / str(step)) == files_of_step
