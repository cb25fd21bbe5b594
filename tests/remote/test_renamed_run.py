"""A run that the mirror has is renamed: no name is left over, and no copy is lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckstore import AmbiguousRef, BytesElsewhere, CkstoreWarning, RetentionPolicy, Store
from ckstore.remote import keys
from ckstore.remote.service.remote_entries import open_objects
from ckstore_cli.app import app
from tests.remote.test_keep import mirrored
from tests.remote.test_push import state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def store(store_with_mirror: Store) -> Store:
    return store_with_mirror


def there(store: Store) -> list[str]:
    """Return the names of the checkpoints on the mirror."""
    listed = open_objects(store.remotes.get("cold").target).list(keys.CHECKPOINTS)
    return sorted({place.name for one in listed if (place := keys.place_in(one.key)) is not None})


def renamed(store: Store) -> None:
    """Save and mirror three checkpoints, and rename their run."""
    for step in range(1, 4):
        store.save(state(step), step=step)
    store.tag("best", 1)
    mirrored(store)
    with pytest.warns(CkstoreWarning, match="cold keeps 3 checkpoints under the name main"):
        store.rename_run("main", "chosen")
    mirrored(store)


def test_keep_remote_removes_the_old_name_of_a_renamed_run(store: Store, tmp_path: Path) -> None:
    renamed(store)
    assert there(store) == [f"{run}@{step}" for run in ("chosen", "main") for step in (1, 2, 3)]
    address = store.remotes.get("cold").target.address
    with pytest.raises(AmbiguousRef):
        Store.clone(address, tmp_path / "early").latest()

    store.config.keep_remote = RetentionPolicy(keep_last=2)
    plan = store.remotes.prune("cold", dry_run=True).retention
    assert plan is not None
    assert "main@3 dropped because its run was renamed: it is now chosen@3" in str(plan.plan)
    mirrored(store)

    assert there(store) == ["chosen@1", "chosen@2", "chosen@3"]  # the tag keeps the first one
    clone = Store.clone(address, tmp_path / "late")
    assert clone.info("latest").id == store.info("latest").id
    assert clone.load("best")["step"] == 1
    assert clone.verify().ok
    check_store(store.path)


def test_a_clone_that_lists_both_names_completes_the_renaming_without_a_download(store: Store, tmp_path: Path) -> None:
    renamed(store)
    clone = Store.clone(store.remotes.get("cold").target.address, tmp_path / "clone")
    assert {info.run for info in clone.checkpoints()} == {"chosen", "main"}

    clone.rename_run("main", "chosen")

    assert [info.name for info in clone.checkpoints()] == ["chosen@1", "chosen@2", "chosen@3"]
    assert all(info.elsewhere for info in clone.checkpoints())
    assert clone.info("latest").id == store.info("latest").id
    assert clone.verify().ok
    check_store(clone.path)


def test_the_old_name_stays_on_the_mirror_while_its_copy_is_missing_there(store: Store) -> None:
    renamed(store)
    objects = open_objects(store.remotes.get("cold").target)
    (lost,) = (one.key for one in objects.list(keys.CHECKPOINTS) if "chosen/2/" in one.key and "manifest" in one.key)
    objects.delete([lost])
    store.config.keep_remote = RetentionPolicy(keep_last=3)

    store.remotes.prune("cold")

    assert there(store) == ["chosen@1", "chosen@3", "main@2"]


def test_both_names_stay_on_the_mirror_if_the_store_lists_neither_or_both(store: Store, tmp_path: Path) -> None:
    renamed(store)
    both = [f"{run}@{step}" for run in ("chosen", "main") for step in (1, 2, 3)]
    clone = Store.clone(store.remotes.get("cold").target.address, tmp_path / "clone")
    clone.config.mirror = "origin"
    for run in ("main", "chosen"):
        clone.remotes.take_over("origin", run)
    clone.config.keep_remote = RetentionPolicy(keep_last=3)
    clone.remotes.prune("origin")
    assert there(store) == both
    clone.untag("best")
    for name in both[:2] + both[3:5]:
        clone.delete(name, now=True)

    clone.remotes.prune("origin")

    assert there(store) == both


def test_a_run_with_evicted_checkpoints_is_refused_with_a_command_that_works(store: Store, tmp_path: Path) -> None:
    for step in range(1, 4):
        store.save(state(step), step=step)
    mirrored(store)
    store.remotes.add("other", tmp_path / "other-remote")  # so that the remote has to be named
    for step in (1, 3):
        store.evict(step, remote="cold")

    with pytest.raises(BytesElsewhere, match="data of main@1, main@3 is on a remote only") as caught:
        store.rename_run("main", "chosen")

    prefix, hint = "first download it: ", caught.value.command_hint or ""
    assert hint == f"{prefix}ckstore pull --remote cold main@1 main@3"
    assert caught.value.hint == f"{prefix}store.pull(ref, 'cold') for each"
    pulled = CliRunner().invoke(app, [*shlex.split(hint.removeprefix(prefix))[1:], "--store", str(store.path)])
    assert pulled.exit_code == 0
    with pytest.warns(CkstoreWarning, match="keeps 3 checkpoints under the name main"):
        store.rename_run("main", "chosen")
    check_store(store.path)
