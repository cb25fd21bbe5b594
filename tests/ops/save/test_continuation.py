"""A run belongs to one training: fresh, resumed, forked, rolled back and two at once, each in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ckstore import BadInput, CheckpointInfo, CkstoreError, DamagedBlob, Ranks, RunInUse, Store
from ckstore.ops.save import continuation
from ckstore.training import capture, provenance
from ckstore_cli.app import app
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.stores import check_store


def captured(seed: float) -> dict[str, object]:
    return capture({"w": np.full(100, seed)}, rng=False)


def save(store: Store, seed: float, step: int, **how: Any) -> CheckpointInfo:
    info: CheckpointInfo = store.save(captured(seed), step, **{"if_exists": "replace", **how})
    return info


def save_async(store: Store, seed: float, step: int, **how: object) -> CheckpointInfo:
    pending = store.save_async(captured(seed), step, **{"if_exists": "replace", **how})  # type: ignore[arg-type]
    return pending.result(120)


Saving = Callable[..., CheckpointInfo]


def elsewhere(act: Callable[[], object]) -> str:
    """Return what an act returns, or the error that it raises, in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                said = str(act())
            except CkstoreError as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a training of three steps in the run ``gpt``."""
    made = Store.init(tmp_path / "s", run="gpt")
    for step in (1, 2, 3):
        save(made, step, step)
    return made


def ids(store: Store) -> dict[int, str]:
    return {info.step: info.id for info in store.checkpoints("gpt")}


def opened(store: Store, **how: object) -> Store:
    return Store.open(store.path, **{"run": "gpt", **how})  # type: ignore[arg-type]


@pytest.mark.parametrize("saving", [save, save_async])
@pytest.mark.parametrize("step", [2, 9])
def test_a_fresh_training_is_refused_and_told_the_lines_that_work(store: Store, saving: Saving, step: int) -> None:
    before = ids(store)

    said = elsewhere(lambda: saving(opened(store), 7, step))

    assert said.startswith("RunInUse: the run gpt has checkpoints of another training, such as gpt@3 of ")
    assert "run='gpt-2', or run=\"auto\"" in said
    assert "continue_from='gpt@3'" in said
    assert ids(store) == before
    check_store(store.path)


@pytest.mark.parametrize("saving", [save, save_async])
@pytest.mark.parametrize("again", [False, True])
def test_a_loop_that_starts_again_in_one_process_replaces_nothing(store: Store, saving: Saving, again: bool) -> None:
    before = ids(store)
    handle = opened(store) if again else store

    with handle, pytest.raises(RunInUse, match=r"has saved gpt@3, and saves step 1 without") as refused:
        saving(handle, 7, 1)

    assert "run='gpt-2', or run=\"auto\"" in refused.value.hint
    assert "--run gpt-2 keeps both" in refused.value.command_hint
    assert ids(store) == before
    check_store(store.path)


def test_a_process_may_go_back_to_what_it_loaded_or_names_and_save_earlier_steps_that_are_new(store: Store) -> None:
    first, second, third = ids(store).values()

    content = store.info("gpt@2").content
    assert save(store, 2, 2).content == content  # the same content again
    assert save(store, 9, 3).id != third
    assert save(store, 8, 3).step == 3  # the last step once more
    assert store.save({"w": 1}, 2, if_exists="replace").id != second  # of no training
    assert save(store, 10, 0).step == 0
    assert save(store, 10, 3).step == 3
    assert save(store, 11, 2, parent="gpt@1").parent == first  # a copy in memory
    assert save(store, 10, 3).step == 3
    store.load("gpt@1")
    assert save(store, 12, 2).parent == first
    check_store(store.path)


@pytest.mark.parametrize("saving", [save, save_async])
@pytest.mark.parametrize("ref", ["latest", "1"])
def test_a_resumed_and_a_rolled_back_training_replace_what_comes_after(store: Store, saving: Saving, ref: str) -> None:
    before = ids(store)

    def train() -> list[str]:
        own = opened(store)
        own.load(f"gpt@{ref}")
        return [saving(own, 70 + step, step).id for step in (2, 3, 4)]

    said = elsewhere(train)

    after = ids(store)
    assert said == str([after[step] for step in (2, 3, 4)])
    assert not {before[2], before[3]} & {*after.values()}
    assert after[1] == before[1]
    assert {store.load("latest")["model"]["w"][0]} == {74.0}
    check_store(store.path)


@pytest.mark.parametrize("saving", [save, save_async])
def test_a_rolled_back_training_goes_on_where_retention_has_cut_the_chain(store: Store, saving: Saving) -> None:
    store.delete("gpt@2", now=True)

    def train() -> object:
        own = opened(store)
        own.load("gpt@1")
        return saving(own, 73, 3).step

    assert elsewhere(train) == "3"
    check_store(store.path)


@pytest.mark.parametrize("saving", [save, save_async])
def test_a_fork_saves_to_its_own_run_and_replaces_nothing_of_its_origin(store: Store, saving: Saving) -> None:
    before = ids(store)

    def fork() -> tuple[str, str | None]:
        own = opened(store)
        own.load("gpt@2")
        info = saving(own, 8, 2, run="fork")
        return info.name, info.parent

    def astray() -> object:
        own = opened(store)
        own.load("fork@2")
        return saving(own, 9, 2)

    assert elsewhere(fork) == str(("fork@2", before[2]))
    assert elsewhere(astray).startswith("RunInUse")
    assert ids(store) == before
    manifests = [checkpoint_dir(store.path, run, 2) / "manifest.json" for run in ("gpt", "fork")]
    assert len({json.loads(path.read_bytes())["manifest"]["training"] for path in manifests}) == 2
    check_store(store.path)


def test_of_two_that_begin_at_once_one_has_the_run(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s", run="gpt")
    first = Store.open(store.path, run="gpt")
    assert save(first, 1, 1).step == 1

    said = elsewhere(lambda: save(opened(store), 2, 1))

    assert said.startswith("RunInUse")
    check_store(store.path)


@pytest.mark.parametrize("saving", [save, save_async])
def test_of_two_that_continue_one_checkpoint_the_first_stops_when_the_second_has_saved(
    store: Store, saving: Saving
) -> None:
    saving(store, 4, 4)
    said = elsewhere(lambda: (own := opened(store)).load("gpt@2") and saving(own, 73, 3).step)
    assert said == "3"
    before = ids(store)

    with pytest.raises(RunInUse, match=r"another process has saved gpt@3 of .* two processes train in it"):
        saving(store, 5, 5)
    with pytest.raises(RunInUse):
        saving(store, 5, 5)  # tried again

    assert ids(store) == before
    check_store(store.path)


def test_a_checkpoint_that_is_brought_back_or_appended_by_a_tool_stops_no_training(store: Store) -> None:
    store.config.undo_by_hand_s = 3600
    store.delete("gpt@2")
    save(store, 4, 4)
    store.undo("gpt@2")
    elsewhere(lambda: opened(store).save({"report": 1}, 100))

    assert save(store, 5, 5).step == 5
    check_store(store.path)


def test_a_plain_save_replaces_nothing_of_another_training_and_says_that_latest_is_its_own(store: Store) -> None:
    before = ids(store)

    refused = elsewhere(lambda: opened(store).save({"w": 7}, 2, if_exists="replace"))
    said = elsewhere(lambda: opened(store).save({"w": 7}, 9).warnings)

    assert refused.startswith("RunInUse: gpt@2 of ")
    assert "gpt@9 continues no checkpoint of its run, and is its latest now instead of gpt@3" in said
    assert {**before, 9: ids(store)[9]} == ids(store)
    check_store(store.path)


def test_tools_that_append_are_told_nothing(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s", run="gpt")

    said = [elsewhere(lambda step=step: opened(store).save({"w": step}, step).warnings) for step in (1, 2, 3)]  # type: ignore[misc]

    assert said == ["()"] * 3
    check_store(store.path)


def test_what_is_named_as_the_parent_or_declared_is_continued(store: Store) -> None:
    named = elsewhere(lambda: save(opened(store), 7, 2, parent="gpt@1").step)
    declared = elsewhere(lambda: save_async(opened(store, continue_from="gpt@1"), 8, 3).parent)

    assert named == "2"
    assert declared == ids(store)[1]
    check_store(store.path)


def test_the_same_content_again_is_no_replacement_and_makes_no_descendant(store: Store) -> None:
    before = ids(store)

    def retry() -> str:
        own = opened(store)
        info = own.save(captured(2), 2)
        try:
            save(own, 9, 3)
        except RunInUse:
            return info.id
        return "replaced"

    assert elsewhere(retry) == before[2]
    assert ids(store) == before
    check_store(store.path)


def test_who_finds_no_checkpoint_whole_begins_again(store: Store) -> None:
    for step in (1, 2, 3):
        (blob,) = (directory_of(store, f"gpt@{step}") / "blobs").iterdir()
        flip(blob)
        with pytest.raises(DamagedBlob):
            store.load(f"gpt@{step}")

    assert elsewhere(lambda: save(opened(store), 7, 1).step) == "1"


def test_a_store_of_an_older_ckstore_goes_on_where_it_was_loaded_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.init(tmp_path / "s", run="gpt")
    with monkeypatch.context() as older:
        older.setattr("ckstore.ops.save.save.training_of", lambda *_: "")
        save(Store.open(store.path, run="gpt"), 1, 1)
        save(Store.open(store.path, run="gpt", continue_from="latest"), 2, 2)

    def resumed() -> int:
        own = opened(store)
        own.load("gpt@1")
        return save(own, 72, 2).step

    assert elsewhere(lambda: save(opened(store), 8, 2)).startswith("RunInUse")
    assert elsewhere(resumed) == "2"
    check_store(store.path)


def test_a_handle_that_is_pickled_continues_what_it_loaded(store: Store) -> None:
    def spawned() -> int:
        own = opened(store)
        own.load("gpt@1")
        data = pickle.dumps(own)
        return int(elsewhere(lambda: save(pickle.loads(data), 72, 2).step))

    assert elsewhere(spawned) == "2"
    check_store(store.path)


@pytest.mark.parametrize("first", [0, 1])
def test_where_one_rank_loads_for_all_it_does_not_matter_which_one_publishes(store: Store, first: int) -> None:
    def train() -> list[int]:
        handles = [opened(store), opened(store)]
        handles[0].load("gpt@2")
        saved: list[int] = []

        def rank(number: int) -> None:
            how = Ranks(number, 2, "one", 60)
            state = {"w": np.full(10, float(number))}
            saved.append(handles[number].save(state, 3, ranks=how, if_exists="replace").step)

        threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
        # Who comes last finds all parts, and publishes.
        for number in (first, 1 - first):
            threads[number].start()
            time.sleep(1)
        for thread in threads:
            thread.join()
        return saved

    assert elsewhere(train) == "[3, 3]"
    store.gc()
    check_store(store.path)


def test_auto_takes_a_free_run_made_from_the_wanted_one_and_two_processes_take_two(store: Store) -> None:
    made = [elsewhere(lambda: save(opened(store), 1, 1, run="auto").name) for _ in range(2)]
    own = opened(store)
    both = [save(own, 1, 1, run="auto").name, save_async(own, 2, 2, run="auto").name]

    assert made == ["gpt-2@1", "gpt-3@1"]
    assert both == ["gpt-4@1", "gpt-4@2"]
    assert Store.open(store.path, run="auto").run == "main"
    assert Store.open(store.path, run="auto").run == "main-2"
    check_store(store.path)


def test_a_training_that_begins_continues_nothing_that_this_process_saved(store: Store) -> None:
    continuation.begin_training(store._context, "gpt")

    with pytest.raises(RunInUse):
        save_async(store, 4, 4)
    with pytest.raises(RunInUse):
        save(store, 4, 4)

    check_store(store.path)


def test_another_configuration_than_that_of_what_was_loaded_is_named_once(store: Store) -> None:
    config = {"lr": 1e-3, "model": {"width": 8, "depth": 2}}
    save(store, 4, 4, metadata=provenance(config))

    def train() -> list[tuple[str, ...]]:
        own = opened(store)
        own.load("latest")
        other = provenance({**config, "lr": 3e-4, "model": {"width": 16, "depth": 2}})
        return [save(own, step, step, metadata=other).warnings for step in (5, 6)]

    assert elsewhere(train) == str(
        [("gpt@5 continues gpt@4 with another configuration: lr is 0.0003, was 0.001, model.width is 16, was 8",), ()]
    )
    assert (
        elsewhere(lambda: (own := opened(store)).load("4") and save(own, 7, 7, metadata=provenance(config)).warnings)
        == "()"
    )


def test_a_command_replaces_what_it_is_told_to_continue(tmp_path: Path, store: Store) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "w").write_bytes(b"of a command")
    words = ["commit", str(tmp_path / "checkpoint-2"), "--run", "gpt", "--if-exists", "replace"]

    def command(*more: str) -> str:
        result = CliRunner().invoke(app, [*words, *more, "--store", str(store.path)])
        return f"{result.exit_code} {result.output}"

    refused = elsewhere(command)
    done = elsewhere(lambda: command("--parent", "gpt@1"))

    assert refused.startswith("1 ")
    assert "--run gpt-2 keeps both; --parent gpt@2 continues it" in refused
    assert done.startswith("0 ")
    assert store.info("gpt@2").parent == ids(store)[1]
    check_store(store.path)


def test_a_training_goes_on_in_the_new_name_of_its_run(store: Store) -> None:
    before = store.info("gpt@3")
    (*_, newest) = store.rename_run("gpt", "chosen")

    info = save(store, 4, 4, run="chosen")
    assert info.parent == newest.id
    assert before.content == newest.content
    assert save(store, 1, 1).training != info.training
    check_store(store.path)


def test_a_run_that_each_rank_would_take_for_itself_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="each of 2 ranks would take a run of its own"):
        store.save({"w": 1}, 9, run="auto", ranks=Ranks(0, 2, "one", 1))
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="each of 4 ranks would take a run of its own"):
        Store.open(store.path, run="auto")

    assert [run.name for run in store.runs()] == ["gpt"]
    with pytest.raises(BadInput, match="needs the name of a specific run"):
        store.rename_run("gpt", "auto")
    with pytest.raises(BadInput, match="if_run_in_use must be 'error' or 'append'"):
        store.save({"w": 1}, 9, if_run_in_use="replace")  # type: ignore[call-overload]
    check_store(store.path)
