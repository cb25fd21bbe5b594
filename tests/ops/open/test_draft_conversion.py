"""A store of a draft gets the names of this ckstore: nothing is lost, wherever that stops, and readers go on."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import CheckpointInfo, CkstoreWarning, Ranks, RetentionPolicy, Store
from ckstore.errors import DamagedBlob, InUse, NewerFormat, NoSuchRef, ReadOnlyStore
from ckstore.fs import locks
from ckstore.model.settings import settings as settings_of_store
from ckstore.ops.open import draft_conversion as converting
from ckstore_cli.app import app
from tests.format import reader
from tests.support.checkpoint_dirs import checkpoint_dir, checkpoint_dirs, dir_of_id
from tests.support.crashing import run_and_kill
from tests.support.draft_stores import (
    draft_names,
    is_converted,
    leave_gap,
    make_draft,
    name_by_step,
    tag_text,
)
from tests.support.examples import examples
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store
from tests.support.users import common_folder, users

pytestmark = pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")

MIB = 2**20
State = dict[str, npt.NDArray[Any]]


def state(number: int) -> State:
    """Return a state that shares most of its bytes with others; with small arrays, which lie in a pack."""
    big = np.arange(2 * MIB // 4, dtype=np.int32)
    big[::50_000] += number
    return {"big": big, "small": np.full(5, number), "same": np.arange(9)}


def same(found: Any, wanted: State) -> bool:
    """Whether a loaded state, or that of the only rank, is a saved one, bit for bit."""
    found = found.get(0, found)
    return found.keys() == wanted.keys() and all(
        (found[name].dtype, found[name].tobytes()) == (value.dtype, value.tobytes()) for name, value in wanted.items()
    )


def copied(source: Path, target: Path) -> Path:
    """Copy a store with its hardlinks and symlinks."""
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


def command(*words: object) -> Result:
    """Run ``ckstore WORDS`` in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


class Draft:
    """A store of a draft, and what it must hold for ever."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.states: dict[str, State] = {}  # by id
        self.tags: dict[str, str] = {}  # tag -> id
        self.of_steps: dict[str, str] = {}  # RUN@STEP -> id
        self.waiting: set[str] = set()  # ids of what can be brought back

    def copied(self, root: Path) -> Draft:
        """Return a copy with its hardlinks and symlinks."""
        made = Draft(copied(self.root, root))
        made.states, made.tags, made.of_steps = {**self.states}, {**self.tags}, {**self.of_steps}
        made.waiting = {*self.waiting}
        return made

    def place(self, tag: str) -> tuple[str, int]:
        """Return the run and the step of what has a tag."""
        run, _, step = next(name for name, id in self.of_steps.items() if id == self.tags[tag]).partition("@")
        return run, int(step)

    def save(self, store: Store, number: int, step: int, run: str = "main", **given: Any) -> str:
        info: CheckpointInfo = store.save(state(number), step, run, **given)
        self.states[info.id] = state(number)
        self.of_steps[info.name] = info.id
        self.tags |= dict.fromkeys(given.get("tags", ()), info.id)
        return info.id

    def delete(self, store: Store, ref: str) -> None:
        store.delete(ref)
        self.waiting.add(self.of_steps.pop(ref))

    def check_read(self, store: Store) -> None:
        """All of it reads as saved: by its id, its step and its tags."""
        listed = {info.name: info.id for info in store.checkpoints()}
        assert listed == self.of_steps
        for id in self.of_steps.values():
            assert same(store.load(id), self.states[id])
        for ref, id in (*self.of_steps.items(), *self.tags.items()):
            assert store.info(ref).id == id, ref
        assert {tag.name: tag.id for tag in store.tags()} == self.tags

    def check_by_the_page(self, root: Path) -> None:
        """A reader that knows the page alone finds the same."""
        seen = reader.Store(root)
        assert {f"{run}@{step}": one.id for (run, step), one in seen.checkpoints().items()} == self.of_steps
        assert {tag: one and one.id for tag in seen.tags() for one in [seen.tagged(tag)]} == self.tags

    def check_converted(self, root: Path, *, left: tuple[str, ...] = ()) -> None:
        """Nothing has the name of a draft but what is `left`, and all of it is there; what waits comes back."""
        assert draft_names(root) == list(left)
        assert is_converted(root)
        for run, name in (place.split("/") for place in left):
            shutil.rmtree(root / "checkpoints" / run / name)
        self.check_by_the_page(root)
        assert all(short for _, _, short in reader.Store(root).tags().values())
        with Store.open(root) as store:
            self.check_read(store)
            assert store.verify().ok
            assert {one.id for one in store.undoable()} == self.waiting
            back = [store.undo(id) for id in sorted(self.waiting)]
            assert all(same(store.load(info), self.states[info.id]) for info in back)
            store.gc()
        check_store(root)


def full_of(root: Path) -> Draft:
    """Return a draft store with a checkpoint of each kind."""
    draft = Draft(root)
    with Store.init(root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = 86_400
        for step in range(5):
            draft.save(store, step, step, tags=[f"t{step}"] if step % 2 else [])
        store.compact(run="main", keep_newest=3)
        draft.save(store, 20, 20, "side.run-2", tags=["best", "a.tag"])
        draft.save(store, 21, 30, "side.run-2")
        draft.save(store, 22, 40, ranks=Ranks(0, 1, "draft"))
        store.pin(0, "figure 3")
        store.pin("side.run-2@30", "expired", expires="700d")
        store.annotate(2, metrics={"bleu": 27.5}, note="diverges")
        draft.delete(store, "main@4")
    make_draft(root)
    return draft


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    """Return a draft store of each kind, which no test may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        return full_of(tmp_path_factory.mktemp("draft") / "store")


@pytest.fixture
def draft(made: Draft, tmp_path: Path) -> Draft:
    """Return a copy of it."""
    return made.copied(tmp_path / "store")


# ------------------------------------------------------------------ as it should go


def test_the_first_writer_converts_it_and_the_next_finds_nothing_to_do(draft: Draft) -> None:
    with Store.open(draft.root) as store:
        assert not [note for note in store.warnings if "not converted" in note]
        draft.check_read(store)
        assert (store.info(2).metrics["bleu"], store.info(2).notes[0].text) == (27.5, "diverges")
        assert {(pin.run, pin.step, pin.dangling) for pin in store.pins()} == {
            ("main", 0, False),
            ("side.run-2", 30, False),
        }
        report = store.migrate()

    assert (report.renamed_count, report.tag_count, report.left) == (0, 0, ())
    draft.check_converted(draft.root)


def test_migrate_says_what_it_did(draft: Draft) -> None:
    count = len(draft_names(draft.root))

    done = command("--store", draft.root, "migrate")
    again = command("--store", draft.root, "migrate", "--json")

    assert (done.exit_code, done.stdout) == (0, f"renamed {count} checkpoints, rewrote 4 tags\n")
    assert json.loads(again.stdout)["renamed_count"] == json.loads(again.stdout)["tag_count"] == 0
    draft.check_converted(draft.root)


def test_one_who_may_only_read_reads_it_and_changes_nothing(draft: Draft) -> None:
    names = draft_names(draft.root)
    with Store.open(draft.root, readonly=True) as store:
        draft.check_read(store)
        draft.check_by_the_page(draft.root)
        assert store.verify().ok
        with pytest.raises(ReadOnlyStore):
            store.migrate()

    assert (draft_names(draft.root), is_converted(draft.root)) == (names, False)


@pytest.mark.root
def test_another_user_reads_a_draft_and_cannot_convert_it() -> None:
    with common_folder() as folder:
        (user,) = users(folder, 1)
        made = Draft(folder / "store")
        with Store.init(made.root) as store:
            made.save(store, 1, 1, tags=["best"])
        make_draft(made.root)
        subprocess.run(["chmod", "-R", "a+rX", made.root], check=True)
        code = "import json, sys; from ckstore import Store; s = Store.open(sys.argv[1], recover={}); "
        seen = user.python(
            code.format("True") + "print(json.dumps([s.load('best')['small'].tolist(), s.info(1).id]))", made.root
        )
        done = user.ckstore("--store", made.root, "migrate")

        assert seen == [[1] * 5, made.of_steps["main@1"]]
        assert done.returncode != 0
        assert (draft_names(made.root), is_converted(made.root)) == (["main/1"], False)


def test_readers_from_before_go_on_and_find_what_is_there_now(draft: Draft) -> None:
    with Store.open(draft.root, readonly=True) as readonly, readonly.open_checkpoint(2) as opened:
        infos = readonly.checkpoints()
        mapped = readonly.load(3, mmap=True)

        with Store.open(draft.root) as store:
            assert draft_names(draft.root) == []
            draft.check_read(readonly)
            assert all(same(readonly.load(info), draft.states[info.id]) for info in infos)
            assert same(opened.load(), draft.states[draft.of_steps["main@2"]])
            assert same(mapped, draft.states[draft.of_steps["main@3"]])
            store.save(state(50), 50)
        assert readonly.latest("main").step == 50  # type: ignore[union-attr]


def test_an_older_ckstore_refuses_it_afterwards(draft: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(draft.root).close()
    monkeypatch.setattr(settings_of_store, "_KNOWN", (settings_of_store.ELSEWHERE,))

    with pytest.raises(NewerFormat, match="checkpoint-ids"):
        Store.open(draft.root, readonly=True)


def test_what_is_at_a_remote_stays_there_and_is_fetched(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "store")
    with Store.init(draft.root, chunk_bytes=MIB) as store:
        draft.save(store, 1, 1, tags=["best"])
        draft.save(store, 2, 2)
        store.remotes.add("cold", str(tmp_path / "cold"))
        store.push(1, "cold")
        assert store.evict(1, "cold").freed_bytes > MIB
    make_draft(draft.root)

    with Store.open(draft.root) as store:
        draft.check_read(store)
        assert store.info(1).elsewhere
        store.push(2, "cold")
        store.pull(1, "cold")
        assert not store.info(1).elsewhere
        draft.check_read(store)
    check_store(draft.root)


# ------------------------------------------------------------------ what a draft left


def test_a_checkpoint_that_a_replacement_took_from_its_place_is_published(draft: Draft) -> None:
    leave_gap(draft.root, "main", 3)
    leave_gap(draft.root, "side.run-2", 20)

    Store.open(draft.root).close()

    draft.check_converted(draft.root)


@pytest.mark.parametrize("end", ["", ".old"], ids=["exchanged", "by two renames"])
def test_a_checkpoint_that_a_draft_replaced_is_restored(draft: Draft, end: str) -> None:
    """It had a name of a staging when it was moved to trash, so the digits in it are not those of its id."""
    (entry,) = (draft.root / "trash").glob("main@4.*.undo-*")
    entry.rename(entry.with_name(f"main@4.0123456789ab{end}.fedcba987654.undo-86400"))

    with Store.open(draft.root, readonly=True) as readonly:
        assert {one.id for one in readonly.undoable()} == draft.waiting
        Store.open(draft.root).close()
        assert {one.id for one in readonly.undoable()} == draft.waiting

    draft.check_converted(draft.root)


def test_no_sweep_takes_a_checkpoint_that_waits_to_be_published(draft: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    old = leave_gap(draft.root, "main", 3)
    with Store.open(draft.root, recover=False) as store:
        store.gc(now=True)
        assert old.is_dir()
    with monkeypatch.context() as failing:
        failing.setattr(converting, "_BUSY_S", 0.05)
        with locks.lock_shared(draft.root / "checkpoints" / "main"), Store.open(draft.root) as store:
            assert any(f"staging/{old.name}: " in note for note in store.warnings)
            store.gc(now=True)
        assert old.is_dir()
        assert not is_converted(draft.root)

    Store.open(draft.root).close()

    draft.waiting.clear()  # of `now`
    draft.check_converted(draft.root)


def test_a_checkpoint_that_was_replaced_is_not_published(draft: Draft) -> None:
    with Store.init(draft.root.with_name("other"), chunk_bytes=MIB) as other:
        other.save(state(99), 3)
    old = leave_gap(other.path, "main", 3)
    shutil.copytree(old, draft.root / "staging" / old.name)

    Store.open(draft.root).close()

    assert len(checkpoint_dirs(draft.root, "main", 3)) == 1
    draft.check_converted(draft.root)


def test_what_has_no_manifest_keeps_its_name_and_is_reported(draft: Draft) -> None:
    (checkpoint_dir(draft.root, "main", 3) / "manifest.json").unlink()
    (draft.root / "checkpoints" / "main" / "77").mkdir()
    (draft.root / "checkpoints" / "main" / "078").mkdir()

    done = command("--store", draft.root, "migrate")

    assert done.exit_code == 3
    assert "checkpoints/main/3 has no readable manifest" in done.stderr
    assert "checkpoints/main/77 has no readable manifest" in done.stderr
    assert (draft_names(draft.root), is_converted(draft.root)) == (["main/078", "main/3", "main/77"], True)
    with Store.open(draft.root) as store:
        assert not store.verify().ok
        with pytest.raises(NoSuchRef, match="t3"):
            store.load("t3")
        store.save(state(3), 3, if_exists="replace")
        assert same(store.load(3), state(3))
        assert (draft.root / "checkpoints" / "main" / "3").is_dir(), "the tag t3 names it"


def test_one_that_is_there_under_both_names_is_one_checkpoint(draft: Draft) -> None:
    """As a copy of a converted store over a copy of before leaves it."""
    plain = checkpoint_dir(draft.root, "main", 3)
    converted = plain.with_name(f"3.{draft.of_steps['main@3'].partition('-')[2][:10]}")
    subprocess.run(["cp", "-al", plain, converted], check=True)

    with Store.open(draft.root) as store:
        assert is_converted(draft.root)
        draft.check_read(store)
        store.gc()
        draft.check_read(store)

    draft.check_converted(draft.root)


def test_a_copy_under_both_names_of_which_one_is_torn_is_whole(draft: Draft) -> None:
    plain = checkpoint_dir(draft.root, "main", 3)
    torn = plain.with_name(f"3.{draft.of_steps['main@3'].partition('-')[2][:10]}")
    subprocess.run(["cp", "-al", plain, torn], check=True)
    next((torn / "blobs").iterdir()).unlink()

    with Store.open(draft.root) as store:
        assert checkpoint_dirs(draft.root, "main", 3) == [torn, torn.with_name(f"{torn.name}.1")]
        draft.check_read(store)
        assert store.verify(repair=True).ok
        store.gc()
        assert checkpoint_dirs(draft.root, "main", 3) == [torn.with_name(f"{torn.name}.1")]

    draft.check_converted(draft.root)


def test_a_tag_of_the_oldest_drafts_keeps_everything_until_it_is_rewritten(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names its checkpoint once, so a bit in it may have flipped."""
    (draft.root / "refs" / "t1").unlink()
    (draft.root / "refs" / "t1").symlink_to(tag_text("main", 1, twice=False))
    monkeypatch.setattr(converting, "_convert_tags", lambda *_: ([], ["not now"]))

    with Store.open(draft.root) as store:
        draft.check_read(store)
        with pytest.raises(DamagedBlob, match="nothing is deleted while it is not known"):
            store.delete("main@2")

    monkeypatch.undo()
    Store.open(draft.root).close()
    draft.check_converted(draft.root)


def test_what_a_draft_saves_after_the_conversion_is_read_and_converted_by_hand(draft: Draft) -> None:
    """A training that had the store open under an older ckstore goes on with the names that it knows."""
    with Store.open(draft.root) as store:
        draft.save(store, 60, 60, tags=["late"])
        store.untag("late")
        name_by_step(draft.root, "main", 60)
        (draft.root / "refs" / "late").symlink_to(tag_text("main", 60))

        draft.check_read(store)
        with pytest.raises(InUse, match="late"):
            store.delete(60)
        report = store.migrate()
        draft.check_read(store)

    assert (report.renamed_count, report.tag_count) == (1, 1)
    draft.check_converted(draft.root)


def test_a_tag_that_dangles_stays_as_it_is(draft: Draft) -> None:
    (draft.root / "refs" / "gone").symlink_to(tag_text("main", 1000))

    with Store.open(draft.root) as store:
        assert is_converted(draft.root)
        assert [tag.name for tag in store.tags() if tag.dangling] == ["gone"]
        store.untag("gone")

    draft.check_converted(draft.root)


# ------------------------------------------------------------------ what stops it


def test_a_tag_of_a_draft_protects_its_step_until_it_is_rewritten(
    draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for tag in ("best", "t3"):
        (draft.root / "refs" / tag).unlink()
        (draft.root / "refs" / tag).symlink_to(tag_text(*draft.place(tag)))
    with monkeypatch.context() as failing:
        failing.setattr(converting, "move_tag", refuse)
        store = Store.open(draft.root)
    with store:
        assert any("refs/t3: " in note for note in store.warnings)
        assert (draft_names(draft.root), is_converted(draft.root)) == ([], False)
        draft.check_read(store)
        for _ in range(2):
            with pytest.raises(InUse, match="tag"):
                store.delete("main@3", now=True)
            store.save(state(70), 3, if_exists="replace")
        assert dir_of_id(draft.root, "main", 3, draft.of_steps["main@3"]).is_dir()
        store.prune(RetentionPolicy(keep_last=1))
        store.gc(now=True)
        kept = [draft.tags["t3"], draft.tags["t1"], draft.tags["best"]]
        assert all(same(store.load(id), draft.states[id]) for id in kept)

    with Store.open(draft.root) as store:
        assert is_converted(draft.root)
        assert {tag.name: tag.id for tag in store.tags()} == draft.tags
    check_store(draft.root)


def test_one_that_is_locked_for_long_is_left_to_the_next_writer(draft: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "_BUSY_S", 0.05)
    with (
        locks.lock_exclusive(checkpoint_dir(draft.root, "main", 3), timeout_s=1),
        Store.open(draft.root, recover=False) as store,
    ):
        report = store.migrate()
        assert [text.partition(":")[0] for text in report.left] == ["checkpoints/main/3"]
        assert (draft_names(draft.root), is_converted(draft.root)) == (["main/3"], False)
        store.save(state(80), 80)
    draft.of_steps["main@80"], draft.states[draft_id(draft.root, 80)] = draft_id(draft.root, 80), state(80)

    Store.open(draft.root).close()

    draft.check_converted(draft.root)


def draft_id(root: Path, step: int) -> str:
    return reader.Checkpoint(checkpoint_dir(root, "main", step)).id


@pytest.mark.parametrize("way", ["open", "migrate"])
@pytest.mark.parametrize("count", [2, 3])
def test_several_may_convert_it_at_once(draft: Draft, way: str, count: int) -> None:
    code = "import sys; from ckstore import Store; s = Store.open(sys.argv[1], recover={}); {}"
    words = (True, "s.close()") if way == "open" else (False, "s.migrate()")
    command = [sys.executable, "-W", "ignore", "-c", code.format(*words), str(draft.root)]
    at_work = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    said = [process.communicate(timeout=120)[1] for process in at_work]

    assert ([process.returncode for process in at_work], said) == ([0] * count, [""] * count)
    draft.check_converted(draft.root)


WAYS: dict[str, Callable[[Path], object]] = {
    "open": Store.open,
    "migrate": lambda root: Store.open(root, recover=False).migrate(),
}
SEAM = {os: ("rename", "replace", "symlink", "link", "mkdir", "unlink", "rmdir", "write", "fsync", "fdatasync")}
"""Every call by which a conversion changes the store."""


@pytest.mark.crash
@pytest.mark.parametrize("way", WAYS)
def test_a_conversion_that_is_killed_anywhere_loses_nothing(made: Draft, way: str, tmp_path: Path) -> None:
    prepared = made.copied(tmp_path / "prepared")
    leave_gap(prepared.root, "main", 1)
    stride = 1 if CRASH_FULL else 11
    at = points = 0
    for at in itertools.count(1, stride):
        root = copied(prepared.root, tmp_path / "store")
        with Store.open(root, readonly=True) as readonly:
            readonly.checkpoints()
            died = run_and_kill(lambda: WAYS[way](root), at=at, before=True, seam=SEAM, may_fail=False)  # noqa: B023
            if checkpoint_dirs(root, "main", 1):  # published again
                prepared.check_by_the_page(root)
                prepared.check_read(readonly)
                prepared.check_read(Store.open(root, readonly=True))
            if died and at % (2 * stride) == 1:  # the next one dies, too
                run_and_kill(lambda: WAYS[way](root), at=1 + at // 2, before=True, seam=SEAM)  # noqa: B023
            Store.open(root).close()
            prepared.check_read(readonly)
        prepared.check_converted(root)
        shutil.rmtree(root)
        points += 1
        if not died:
            break
    assert at > 30
    assert points > 3


# ------------------------------------------------------------------ the law


def random_draft(root: Path, drawn: random.Random) -> Draft:
    """Return a store that a draft could have left, perhaps with a conversion that was begun."""
    draft = Draft(root)
    with Store.init(root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = 86_400
        runs = drawn.sample(["main", "b", "c.d-1", "100"], drawn.randint(1, 3))
        places = [(run, step) for run in runs for step in drawn.sample(range(12), drawn.randint(1, 5))]
        drawn.shuffle(places)
        for number, (run, step) in enumerate(places):
            tags = [f"tag{number}"] if drawn.random() < 0.4 else []
            draft.save(store, drawn.randint(0, 3) * 10 + number, step, run, tags=tags)
        refs = [*draft.of_steps]
        if drawn.random() < 0.4:
            store.compact(run=drawn.choice(runs), keep_newest=1)
        for ref in drawn.sample(refs, min(2, len(refs))):
            if drawn.random() < 0.5:
                store.pin(ref, "kept")
            else:
                store.annotate(ref, note="later")
        kept = {*draft.tags.values(), *(pin.id for pin in store.pins())}
        for ref in drawn.sample(refs, drawn.randint(0, 2) if len(refs) > 2 else 0):
            if draft.of_steps[ref] not in kept:
                draft.delete(store, ref)
    make_draft(root)
    if drawn.random() < 0.3:  # begun
        run_and_kill(lambda: WAYS["migrate"](root), at=drawn.randint(1, 80), before=True, seam=SEAM)
    for ref, id in sorted(draft.of_steps.items()):
        run, _, name = ref.partition("@")
        there = root / "checkpoints" / run / name
        if there.is_dir() and drawn.random() < 0.1:
            leave_gap(root, run, int(name))
        elif there.is_dir() and drawn.random() < 0.1:
            subprocess.run(["cp", "-al", there, there.with_name(f"{name}.{id.partition('-')[2][:10]}")], check=True)
    return draft


@pytest.mark.property
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 2**32))
def test_whatever_a_draft_left_is_converted_without_a_loss(seed: int) -> None:
    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        draft = random_draft(Path(folder, "store"), drawn)
        for _ in range(drawn.randint(0, 3)):
            way = WAYS[drawn.choice([*WAYS])]
            run_and_kill(lambda: way(draft.root), at=drawn.randint(1, 120), before=True, seam=SEAM)  # noqa: B023
        left: tuple[str, ...] = ()
        if drawn.random() < 0.2 and not is_converted(draft.root):
            left = ("main/99",)
            (draft.root / "checkpoints" / left[0] / "blobs").mkdir(parents=True)
        Store.open(draft.root).close()
        with Store.open(draft.root) as store:
            store.gc()
        draft.check_converted(draft.root, left=left)
