"""Nodes with stores of their own save one checkpoint to the mirror of all, or none; each keeps its own parts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreError, NoSuchRef, RankMismatch, StepExists, Store, UnknownOutcome
from ckstore.errors import RemoteUnavailable
from ckstore.integrations import dcp
from ckstore.ops.refs.find import open_directory
from ckstore.remote import key_lookup
from ckstore.remote import keys as blobs
from ckstore.remote.mirror import nodes_without_shared_store
from ckstore.remote.service.engine import ServiceObjects
from ckstore.store import context_of
from tests.ranks.apart import MIB, Killed, node, part, save
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.s3_server import BUCKET, KEY, SECRET, Service, s3_service

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

Nodes = Callable[[int], list[Store]]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Return a service that does what S3 does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with s3_service() as running:
        yield running


@pytest.fixture
def nodes(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Return what makes stores of nodes, with the service as the mirror of all."""

    def make(count: int) -> list[Store]:
        return [node(tmp_path / f"node{number}", service.port, monkeypatch) for number in range(count)]

    return make


def keys(service: Service, folder: str) -> list[str]:
    return sorted(key for key in service.objects if key.startswith(f"run/{folder}/"))


def at_remote(service: Service) -> list[str]:
    return [key for key in keys(service, "checkpoints") if key.endswith("/manifest.json")]


def loaded(store: Store, step: int) -> dict[str, torch.Tensor]:
    state = store.load(step)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def digests_of(store: Store, step: int) -> list[str]:
    with open_directory(context_of(store), store.info(step)) as directory:
        return [blob.digest for blob in directory.manifest.blobs]


def blobs_here(store: Store, step: int) -> int:
    return len([*blobs_dir(store.path, "main", step).iterdir()])


def nothing_is_listed(stores: list[Store], service: Service, step: int) -> None:
    assert not at_remote(service)
    for store in stores:
        assert not checkpoint_dir(store.path, "main", step).exists()


def test_a_checkpoint_of_two_nodes_is_at_the_remote_and_each_node_keeps_its_part(
    nodes: Nodes, service: Service, tmp_path: Path
) -> None:
    stores = nodes(2)

    infos = save(stores, 1, tags="best")

    assert len(at_remote(service)) == 1
    assert not keys(service, "intents")
    assert {info.id for info in infos if info} == {store.info(1).id for store in stores}
    assert [info.warnings for info in infos if info] == [(), ()]
    assert [store.info("best").step for store in stores] == [1, 1]
    assert [store.info(1).elsewhere for store in stores] == [True, True]
    # Two chunks of its own; what both have is packed in one more.
    assert [blobs_here(store, 1) for store in stores] == [2, 2]
    assert all(store.verify().ok for store in stores)
    for store in stores:
        service.requests.clear()
        assert torch.equal(loaded(store, 1)["w0"], part(0, 1))
        assert torch.equal(loaded(store, 1)["w1"], part(1, 1))
    # A node that was not there: it lists all, and fetches what it reads.
    third = Store.open_or_init(tmp_path / "third", mirror=stores[0].remotes.list()[0].target.address)
    assert torch.equal(loaded(third, 1)["w1"], part(1, 1))
    assert third.info(1).id == stores[0].info(1).id


def test_a_node_reads_its_own_part_from_its_own_disk(nodes: Nodes, service: Service) -> None:
    stores = nodes(2)
    save(stores, 1)

    state = {"w1": torch.zeros(2 * MIB, dtype=torch.uint8)}
    before = sum(service.requests.values())
    dcp.load(stores[1], state, 1, strict="w1")

    assert torch.equal(state["w1"], part(1, 1))
    assert sum(service.requests.values()) == before


def test_what_was_saved_before_is_not_sent_again_and_the_order_of_commits_goes_on(
    nodes: Nodes, service: Service
) -> None:
    stores = nodes(2)
    for number in range(3):
        stores[1].save({"own": number}, step=number, run="other")
    save(stores, 1)
    held = len(keys(service, "blobs"))
    # The other node joins now, as after a restart that gave the ranks other numbers.
    infos = save(stores[::-1], 2, state=lambda rank: {f"w{1 - rank}": part(1 - rank, 1)})

    assert len(keys(service, "blobs")) == held
    assert infos[0] is not None
    assert infos[0].new_bytes == 0
    assert [store.info("main@latest").step for store in stores] == [2, 2]
    assert stores[0].info(2).sequence > stores[0].info(1).sequence


def test_stores_without_a_common_mirror_are_refused_before_anything_is_staged(
    nodes: Nodes, service: Service, tmp_path: Path
) -> None:
    (first,) = nodes(1)
    alone = Store.init(tmp_path / "alone", chunk_bytes=MIB)

    with pytest.raises(RankMismatch, match="disagree about the checkpoint: rank") as raised:
        save([first, alone], 1)
    assert "the same mirror" in raised.value.hint
    assert not keys(service, "blobs")
    nothing_is_listed([first, alone], service, 1)


def test_nodes_with_different_remotes_are_refused(nodes: Nodes, service: Service, tmp_path: Path) -> None:
    (first,) = nodes(1)
    other = Store.open_or_init(tmp_path / "other", chunk_bytes=MIB, mirror=f"s3://{BUCKET}/another")

    with pytest.raises(RankMismatch, match="has remote"):
        save([first, other], 1)
    nothing_is_listed([first, other], service, 1)
    assert not keys(service, "intents")


def test_a_step_that_another_node_saved_is_refused_and_the_same_state_is_no_error(
    nodes: Nodes, service: Service
) -> None:
    stores = nodes(4)
    save(stores[:2], 1)

    with pytest.raises(StepExists):
        save(stores[2:], 1, state=lambda rank: {f"w{rank}": part(rank, 7)})
    infos = save(stores[2:], 1, state=lambda rank: {f"w{rank}": part(rank, 1), "step": 1})

    assert len(at_remote(service)) == 1
    assert {info.id for info in infos if info} == {stores[0].info(1).id}
    assert [blobs_here(store, 1) for store in stores] == [2, 2, 2, 2]


_PHASES = {
    "before its intent": ("send", "intents/", (0, 1)),
    "at its first blob": ("send", "blobs/", (0, 1)),
    "when the last part is there": ("", "", (0,)),
    "before it commits": ("update", "intents/", (0,)),
}
"""The request that is never made, and the ranks that make it."""
_CHEAP = ("at its first blob", 1)
_CASES = [
    pytest.param(phase, rank, marks=[] if (phase, rank) == _CHEAP else [pytest.mark.crash])
    for phase, (_, _, ranks) in _PHASES.items()
    for rank in ranks
]


class Life:
    """Of the rank that is killed; a request of a dead one never arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, key: str, rank: int) -> None:
        self.dead = False
        self._now = -1
        self._die = call, key, rank
        for name in ("send", "put", "update", "delete"):
            monkeypatch.setattr(ServiceObjects, name, self._request(name, getattr(ServiceObjects, name)))

    def at(self, phase: str, rank: int) -> None:
        self._now = rank
        if phase == "whole" and not self._die[0]:
            self.end()

    def end(self) -> None:
        self.dead = True
        raise Killed

    def _request(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def request(objects: ServiceObjects, key: Any, *arguments: Any) -> Any:
            call, part_of_key, rank = self._die
            if self.dead or (name == call and part_of_key in str(key) and self._now == rank):
                self.end()
            return real(objects, key, *arguments)

        return request


@pytest.mark.parametrize("phase, rank", _CASES)
def test_a_node_that_dies_leaves_nothing_partial_and_the_next_save_works(
    phase: str, rank: int, nodes: Nodes, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = nodes(2)
    call, key, _ = _PHASES[phase]
    with monkeypatch.context() as patched:
        life = Life(patched, call, key, rank)
        with pytest.raises(Killed):
            save(stores, 1, at=life.at)
        assert life.dead
    left = keys(service, "intents")

    nothing_is_listed(stores, service, 1)
    again = [Store.open(store.path) for store in stores]
    assert save(again, 1)

    assert len(at_remote(service)) == 1
    assert torch.equal(loaded(again[0], 1)["w1"], part(1, 1))
    assert keys(service, "intents") == left  # which go stale


def test_a_save_that_failed_leaves_orphans_that_a_prune_frees(
    nodes: Nodes, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = nodes(2)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        save(stores, 1, at=Life(patched, "", "", 0).at)
    save(stores, 2)
    needed = {f"run/{blobs.blob(digest)}" for digest in digests_of(stores[0], 2)}
    assert {*keys(service, "blobs")} > needed

    # By the server's clock; the first voids the intents of the dead and condemns, a later one removes.
    for days in (2, 4, 6):
        monkeypatch.setattr(key_lookup, "server_time", lambda _, days=days: datetime.now(UTC) + timedelta(days=days))
        stores[0].remotes.prune("")

    assert {*keys(service, "blobs")} == needed
    assert not keys(service, "intents")
    assert stores[1].verify().ok
    assert torch.equal(loaded(stores[0], 2)["w1"], part(1, 2))


def test_an_answer_that_is_lost_at_the_commit_is_said_to_be_unknown_and_saving_again_finds_it(
    nodes: Nodes, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = nodes(2)
    real = ServiceObjects.send

    def send(objects: ServiceObjects, key: str, data: bytes) -> str:
        found = real(objects, key, data)
        if key.endswith("/manifest.json"):
            raise RemoteUnavailable("the answer was lost")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ServiceObjects, "send", send)
        with pytest.raises(UnknownOutcome, match=r"it is unknown whether main@1 is on mirror"):
            save(stores, 1)
    assert len(at_remote(service)) == 1

    # The stores stay writable, and what is there stays.
    infos = save(stores, 1)

    assert len(at_remote(service)) == 1
    assert [info.id for info in infos if info] == [store.info(1).id for store in stores]
    assert [blobs_here(store, 1) for store in stores] == [2, 2]


def test_a_node_that_cannot_list_what_was_saved_says_so_and_the_save_has_not_failed(
    nodes: Nodes, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = nodes(2)

    def full(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(nodes_without_shared_store, "publish_manifest", full)
        infos = save(stores, 1)

    assert infos[1] is not None
    assert "this store does not keep its part of it" in infos[1].warnings[-1]
    with pytest.raises(NoSuchRef):
        stores[1].info(1)
    # A load that begins at all nodes lists it there, and fetches.
    nodes_without_shared_store.list_there(context_of(stores[1]), 1)
    assert torch.equal(loaded(stores[1], 1)["w1"], part(1, 1))


def test_a_part_whose_blob_was_removed_meanwhile_fails_the_save(nodes: Nodes, service: Service) -> None:
    stores = nodes(2)

    def at(phase: str, _rank: int) -> None:
        if phase == "whole":
            for key in keys(service, "blobs"):
                service.objects.pop(key)

    with pytest.raises(CkstoreError, match="is stored only on a remote"):
        save(stores, 1, at=at)

    nothing_is_listed(stores, service, 1)
    assert save(stores, 1)


def test_a_rank_that_stood_still_leaves_a_later_checkpoint_in_its_place(nodes: Nodes, service: Service) -> None:
    stores = nodes(2)

    def at(phase: str, rank: int) -> None:
        if (phase, rank) == ("told", 1):
            save(stores, 1, state=lambda one: {f"w{one}": part(one, 7)}, if_exists="replace")

    infos = save(stores, 1, at=at)

    assert infos[1] is not None
    assert "was replaced since" in infos[1].warnings[-1]
    assert [torch.equal(loaded(store, 1)["w1"], part(1, 7)) for store in stores] == [True, True]
    assert [len(store.checkpoints(superseded=True)) for store in stores] == [1, 1]
