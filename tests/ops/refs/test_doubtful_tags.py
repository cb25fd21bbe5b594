"""Tags whose checkpoint is unknown: nothing is dropped, the user learns why, and there is a way out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import BadInput, DamagedBlob, InUse, UnsafePlace
from ckstore.model.names import CheckpointKey
from ckstore.objects.layout import Layout
from ckstore.ops.free.retain import carry_out
from ckstore.ops.refs.protection import doubtful_tags
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.look import directory_of
from tests.support.plans import plan_of

POLICY = RetentionPolicy(keep_last=1)
NAMED_ONCE = "../checkpoints/main/{}"


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(100, value, dtype=np.int32)}


@pytest.fixture
def tagged(store: Store) -> Store:
    """Steps 0 to 3, of which 0 has the tag ``good``."""
    for step in range(4):
        store.save(state(step), step)
    store.tag("good", 0)
    return store


def steps(store: Store) -> list[int]:
    return [info.step for info in store.checkpoints()]


def point(store: Store, text: str, name: str = "good") -> Path:
    path = store.path / "refs" / name
    path.unlink(missing_ok=True)
    path.symlink_to(text)
    return path


def other_name(store: Store) -> None:
    first, _, _ = os.readlink(store.path / "refs" / "good").rpartition("/")
    point(store, f"{first}/{checkpoint_dir(store.path, 'main', 1).name}")


def name_once(store: Store) -> None:
    point(store, NAMED_ONCE.format(8))


def nonsense(store: Store) -> None:
    point(store, "..?checkpoints/main/0")


def file(store: Store) -> None:
    (store.path / "refs" / "good").unlink()
    (store.path / "refs" / "good").write_text("main@0")


HARMS = pytest.mark.parametrize("harm", [other_name, name_once, nonsense, file])


@HARMS
def test_while_a_tag_cannot_be_read_nothing_is_dropped(tagged: Store, harm: Callable[[Store], None]) -> None:
    plan = plan_of(tagged, POLICY)
    harm(tagged)

    with pytest.raises(DamagedBlob, match="`ckstore tag -d good` removes it"):
        plan_of(tagged, POLICY)
    with pytest.raises(DamagedBlob, match="`ckstore tag good REF` points it to a checkpoint again"):
        carry_out(tagged._context, plan)
    with pytest.raises(DamagedBlob):
        tagged.prune(POLICY)
    with pytest.raises(DamagedBlob):
        tagged.delete(1)
    assert steps(tagged) == [0, 1, 2, 3]


@HARMS
def test_a_save_with_a_policy_keeps_everything_and_warns(tagged: Store, harm: Callable[[Store], None]) -> None:
    tagged.config.retention = POLICY
    harm(tagged)

    info = tagged.save(state(4), 4)

    assert any("`ckstore tag -d good`" in warning for warning in info.warnings)
    assert steps(tagged) == [0, 1, 2, 3, 4]


@HARMS
def test_a_tag_that_is_written_again_protects_again(tagged: Store, harm: Callable[[Store], None]) -> None:
    harm(tagged)

    tagged.tag("good", 0)
    tagged.prune(POLICY)

    assert steps(tagged) == [0, 3]
    assert tagged.load("good")["w"][0] == 0
    assert not any(found.kind == "tag" for found in tagged.verify(quick=True).findings)


@HARMS
def test_a_tag_that_is_removed_protects_nothing(tagged: Store, harm: Callable[[Store], None]) -> None:
    harm(tagged)

    tagged.untag("good")
    tagged.prune(POLICY)

    assert steps(tagged) == [3]


@pytest.mark.parametrize("harm", [other_name, nonsense, file])
def test_a_tag_that_cannot_be_read_is_not_a_ref(tagged: Store, harm: Callable[[Store], None]) -> None:
    harm(tagged)

    with pytest.raises(DamagedBlob, match="good"):
        tagged.load("good")


@pytest.mark.parametrize("harm", [other_name, nonsense, file])
def test_the_list_of_tags_warns_of_one_that_cannot_be_read(tagged: Store, harm: Callable[[Store], None]) -> None:
    tagged.tag("other", 1)
    harm(tagged)

    with pytest.warns(CkstoreWarning, match="`ckstore tag -d good`"):
        found = tagged.tags()

    assert [tag.name for tag in found] == ["other"]


@HARMS
def test_verify_doctor_and_reindex_say_what_to_do(tagged: Store, harm: Callable[[Store], None]) -> None:
    harm(tagged)

    (finding,) = tagged.verify(quick=True).findings
    (told,) = [one for one in tagged.doctor().findings if one.what == "tags"]
    problems = tagged.reindex().problems

    assert (finding.kind, finding.subject, finding.harmful) == ("tag", "refs/good", True)
    assert "`ckstore tag -d good`" in finding.what
    assert (told.level, "`ckstore tag -d good`" in told.do) == ("warning", True)
    assert any("`ckstore tag -d good`" in problem for problem in problems)


def test_a_checkpoint_that_was_removed_by_hand_holds_up_nothing(tagged: Store) -> None:
    shutil.rmtree(directory_of(tagged, 0))
    with Store.open(tagged.path) as store:
        store.prune(POLICY)

        assert steps(store) == [3]
        assert [tag.dangling for tag in store.tags()] == [True]


def test_a_tag_of_an_older_ckstore_protects_as_ever_and_can_be_renewed(tagged: Store) -> None:
    once = NAMED_ONCE.format(checkpoint_dir(tagged.path, "main", 0).name)
    path = point(tagged, once)
    (finding,) = tagged.verify(quick=True).findings

    assert (finding.kind, finding.harmful) == ("tag", False)
    assert tagged.info("good").step == 0
    tagged.prune(POLICY)
    assert steps(tagged) == [0, 3]

    tagged.tag("good", "good")

    assert os.readlink(path) != once
    assert not any(found.kind == "tag" for found in tagged.verify(quick=True).findings)


@pytest.mark.parametrize("name", ["5", "a b", "latest"])
def test_an_entry_that_no_tag_can_have_as_its_name_can_be_removed(tagged: Store, name: str) -> None:
    point(tagged, NAMED_ONCE.format(1), name)

    with pytest.raises(DamagedBlob, match=f"tag -d '{name}'`"):
        plan_of(tagged, POLICY)

    tagged.untag(name)
    plan_of(tagged, POLICY)


def test_a_directory_among_the_tags_is_not_removed(tagged: Store) -> None:
    """As copying a store with the symlinks followed makes them."""
    (tagged.path / "refs" / "good").unlink()
    shutil.copytree(directory_of(tagged, 0), tagged.path / "refs" / "good")

    with pytest.raises(DamagedBlob):
        plan_of(tagged, POLICY)
    with pytest.raises(BadInput, match="by hand"):
        tagged.untag("good")
    assert (tagged.path / "refs" / "good" / "manifest.json").exists()


def test_a_temporary_name_of_a_tag_holds_up_nothing(tagged: Store) -> None:
    point(tagged, "torn", ".best.0123456789ab")

    tagged.prune(POLICY)

    assert steps(tagged) == [0, 3]


def test_a_tag_that_is_removed_with_its_checkpoint_meanwhile_is_in_no_doubt(
    tagged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the tag and looking for its checkpoint."""
    point(tagged, NAMED_ONCE.format(checkpoint_dir(tagged.path, "main", 0).name))
    look = Layout.inode

    def removing(layout: Layout, key: CheckpointKey) -> int | None:
        if (tagged.path / "refs" / "good").is_symlink():
            monkeypatch.setattr(Layout, "inode", look)
            with Store.open(tagged.path) as other:
                other.untag("good")
                other.delete(0)
        return look(layout, key)

    monkeypatch.setattr(Layout, "inode", removing)

    assert doubtful_tags(tagged._context.layout) == {}
    assert steps(tagged) == [1, 2, 3]


@pytest.mark.filterwarnings("error")
def test_no_act_of_the_store_leaves_a_tag_without_its_checkpoint(tagged: Store) -> None:
    with pytest.raises(InUse, match="has the tag good"):
        tagged.delete(0)
    tagged.save(state(9), 0, if_exists="replace")
    tagged.prune(POLICY)
    tagged.gc(now=True)

    assert not any(tag.dangling for tag in tagged.tags())
    assert (tagged.load("good")["w"][0], tagged.load(0)["w"][0]) == (0, 9)


@pytest.mark.parametrize("is_link", [True, False])
def test_nothing_is_dropped_while_refs_is_not_a_directory(tagged: Store, tmp_path: Path, is_link: bool) -> None:
    refs = tagged.path / "refs"
    refs.rename(tmp_path / "away")
    if is_link:
        refs.symlink_to(tmp_path / "away")
    else:
        refs.write_text("what was here?")
    steps = [info.step for info in tagged.checkpoints()]

    for act in (lambda: tagged.prune(RetentionPolicy(keep_last=1)), lambda: tagged.delete(steps[0])):
        with pytest.raises(UnsafePlace, match="refs is"):
            act()
    assert [info.step for info in tagged.checkpoints()] == steps
    refs.unlink()
    (tmp_path / "away").rename(refs)
