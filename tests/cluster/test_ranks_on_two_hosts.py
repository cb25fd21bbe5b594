"""Ranks of one save on two hosts, whose mounts know nothing of each other's locks; each rank is a thread."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreError, MissingRanks, RankFailed, Ranks, Store, UnknownOutcome
from ckstore.fs.locks import DirectoryLock
from ckstore.objects import publish
from ckstore.ranks import outcome as outcomes
from ckstore.ranks import save as save_of_ranks
from ckstore.ranks import work
from ckstore.ranks.decide import Coordinator
from ckstore.ranks.file_rendezvous import FileRendezvous
from tests.support.requirements import require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

RANKS = 4
PATIENT_S = 120.0

pytestmark = [pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"), pytest.mark.crash]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Where the two hosts see the store."""
    require_root()
    require_fuse()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        places = [
            mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name)) / "store"
            for name in ("one", "two")
        ]
        with Store.init(places[0]) as store:
            store.config.grace_s = 0
        yield places
    check_links(tmp_path / "real/store")
    check_blobs(tmp_path / "real/store")


def together(hosts: list[Path], work: Callable[[Store, int], Any], ranks: list[int]) -> dict[int, Any]:
    """Let ranks work, every other one on the other host; return what each returns or raises."""
    answers: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            with Store.open(hosts[rank % 2]) as store:
                answers[rank] = work(store, rank)
        except BaseException as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def state(rank: int, step: int) -> dict[str, Any]:
    return {"w": np.full(1000, 10 * step + rank), "same": np.arange(5000)}


def test_ranks_of_two_hosts_make_one_checkpoint_of_their_states_and_of_their_files(
    hosts: list[Path], tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        answers = together(
            hosts,
            lambda store, rank, step=step: (
                store.save(  # type: ignore[misc]
                    state(rank, step), step, ranks=Ranks(rank, RANKS, "a", timeout_s=PATIENT_S)
                ).id
            ),
            list(range(RANKS)),
        )
        for place in hosts:
            with Store.open(place) as store:
                assert answers == dict.fromkeys(range(RANKS), store.info(step).id)
                loaded = store.load(step)
                assert all(np.array_equal(loaded[rank]["w"], state(rank, step)["w"]) for rank in range(RANKS))
    for rank in range(RANKS):
        (tmp_path / f"files-{rank}").mkdir()
        (tmp_path / f"files-{rank}" / f"{rank}.bin").write_bytes(bytes([rank]) * 5000)
    answers = together(
        hosts,
        lambda store, rank: (
            store.commit(tmp_path / f"files-{rank}", step=9, ranks=Ranks(rank, RANKS, "a", timeout_s=PATIENT_S)).id
        ),
        list(range(RANKS)),
    )
    with Store.open(hosts[1]) as store:
        assert answers == dict.fromkeys(range(RANKS), store.info(9).id)
        assert sorted(store.checkout(9, tmp_path / "out").paths) == [f"{rank}.bin" for rank in range(RANKS)]
        assert store.verify().ok


def test_a_rank_of_another_host_that_does_not_come_is_named_on_both(hosts: list[Path]) -> None:
    def save(attempt: str, timeout: float) -> Callable[[Store, int], Any]:
        return lambda store, rank: (
            store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, attempt, timeout_s=timeout)).id
        )

    answers = together(hosts, save("a", 5.0), [0, 1, 2])

    told = [answer for answer in answers.values() if isinstance(answer, MissingRanks)]
    assert told
    assert all(3 in answer.missing for answer in told)
    assert all(isinstance(answer, MissingRanks | RankFailed) for answer in answers.values())
    with Store.open(hosts[1]) as store:
        assert store.checkpoints() == []
    again = together(hosts, save("b", PATIENT_S), list(range(RANKS)))
    with Store.open(hosts[0]) as store:
        assert again == dict.fromkeys(range(RANKS), store.info(1).id)


def test_a_rank_that_publishes_under_the_hidden_name_of_its_step_is_waited_for(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank of the other host decides while it does so."""
    first, is_hidden, has_decided = threading.Lock(), threading.Event(), threading.Event()
    real_listed, real_decide = publish._sound_of_step, Coordinator._decide_alone
    real_say, real_stop = FileRendezvous.say_publishing, Coordinator._stop_publishers

    def decide_alone(deciding: Coordinator, staging: Any) -> Any:
        if not first.acquire(blocking=False):
            assert is_hidden.wait(PATIENT_S)
        return real_decide(deciding, staging)

    def listed(*given: Any) -> Any:
        if not is_hidden.is_set():
            is_hidden.set()
            assert has_decided.wait(PATIENT_S)
        return real_listed(*given)

    def say_publishing(meeting: FileRendezvous, staging: str) -> None:
        real_say(meeting, staging)
        if is_hidden.is_set():
            has_decided.set()

    def stop_publishers(deciding: Coordinator) -> Any:
        try:
            return real_stop(deciding)
        finally:
            has_decided.set()

    monkeypatch.setattr(publish, "_sound_of_step", listed)
    monkeypatch.setattr(Coordinator, "_decide_alone", decide_alone)
    monkeypatch.setattr(Coordinator, "_stop_publishers", stop_publishers)
    monkeypatch.setattr(FileRendezvous, "say_publishing", say_publishing)
    answers = together(
        hosts,
        lambda store, rank: store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, "a", timeout_s=PATIENT_S)).id,
        list(range(RANKS)),
    )

    with Store.open(hosts[1]) as store:
        assert answers == dict.fromkeys(range(RANKS), store.info(1).id)


def test_a_rank_that_is_late_fences_those_that_publish_before_it_says_that_one_is_missing(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_listed, real_given_up, real_say_part = publish._sound_of_step, outcomes.given_up, FileRendezvous.say_part
    gives_up, is_hidden, was_told = threading.Event(), threading.Event(), threading.Event()

    def given_up(*given: Any) -> Any:
        outcome = real_given_up(*given)
        gives_up.set()
        assert is_hidden.wait(PATIENT_S)
        return outcome

    def say_part(meeting: FileRendezvous, staging: str) -> None:
        if meeting.who.rank == RANKS - 1:
            assert gives_up.wait(PATIENT_S)
        real_say_part(meeting, staging)

    def listed(*given: Any) -> Any:
        if not is_hidden.is_set():
            is_hidden.set()
            assert was_told.wait(PATIENT_S)
        return real_listed(*given)

    def save(store: Store, rank: int) -> str:
        try:
            timeout = PATIENT_S if rank else 2.0
            return store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, "a", timeout_s=timeout)).id
        finally:
            was_told.set()

    monkeypatch.setattr(publish, "_sound_of_step", listed)
    monkeypatch.setattr("ckstore.ranks.decide.given_up", given_up)
    monkeypatch.setattr(FileRendezvous, "say_part", say_part)
    answers = together(hosts, save, list(range(RANKS)))

    assert all(isinstance(answer, MissingRanks) for answer in answers.values()), answers
    with Store.open(hosts[1]) as store:
        assert store.checkpoints(superseded=True) == []


def test_a_rank_that_is_given_up_under_the_hidden_name_of_its_step_publishes_nothing_later(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "GRACE_LEAST_S", 1.0)
    monkeypatch.setattr(DirectoryLock, "check", lambda _: None)
    real, thread = publish._sound_of_step, list[int]()
    given_up = threading.Event()

    def listed(*given: Any) -> Any:
        if not thread:
            thread.append(threading.get_ident())
            assert given_up.wait(PATIENT_S)
        return real(*given)

    def save(store: Store, rank: int) -> str:
        try:
            return store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, "a", timeout_s=2.0)).id
        finally:
            given_up.set()

    monkeypatch.setattr(publish, "_sound_of_step", listed)
    answers = together(hosts, save, list(range(RANKS)))

    assert all(isinstance(answer, RankFailed | UnknownOutcome) for answer in answers.values()), answers
    assert any(isinstance(answer, RankFailed) for answer in answers.values())
    time.sleep(1.0)  # the thread of the rank whose caller has given up
    with Store.open(hosts[1]) as store:
        assert store.checkpoints(superseded=True) == []
        assert not list(store.path.glob("checkpoints/*/.*"))


def test_a_rank_that_fails_to_publish_stops_the_rank_of_another_host_that_is_publishing(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryLock, "check", lambda _: None)
    real_list, real_hide, failed, thread = publish._sound_of_step, publish._hide, threading.Event(), list[int]()

    def hide(*given: Any) -> None:
        if thread:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        thread.append(threading.get_ident())
        real_hide(*given)

    def listed(*given: Any) -> Any:
        if thread == [threading.get_ident()]:
            assert failed.wait(PATIENT_S)
        return real_list(*given)

    def save(store: Store, rank: int) -> str:
        try:
            return store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, "a", timeout_s=PATIENT_S)).id
        except CkstoreError:
            failed.set()
            raise

    monkeypatch.setattr(publish, "_hide", hide)
    monkeypatch.setattr(publish, "_sound_of_step", listed)
    answers = together(hosts, save, list(range(RANKS)))

    assert all(isinstance(answer, CkstoreError) for answer in answers.values()), answers
    with Store.open(hosts[1]) as store:
        assert store.checkpoints(superseded=True) == []
        assert not list(store.path.glob("checkpoints/*/.*"))


def test_a_rank_that_cannot_fence_the_other_host_does_not_say_that_nothing_was_published(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(publish, "_hide", full)
    monkeypatch.setattr(FileRendezvous, "fence", full)
    answers = together(
        hosts,
        lambda store, rank: store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, "a", timeout_s=2.0)).id,
        list(range(RANKS)),
    )

    unknown = [answer for answer in answers.values() if isinstance(answer, UnknownOutcome)]
    assert unknown, answers
    assert all("No space left" in str(answer) for answer in unknown)


@pytest.mark.parametrize("moment", ["while it stages", "when its part is staged"])
def test_a_rank_of_another_host_that_is_killed_is_named_or_its_part_is_whole(hosts: list[Path], moment: str) -> None:
    killed = fork_and_kill(hosts[1], moment)

    def save(attempt: str, timeout: float) -> Callable[[Store, int], Any]:
        return lambda store, rank: (
            store.save(state(rank, 1), 1, ranks=Ranks(rank, RANKS, attempt, timeout_s=timeout)).id
        )

    answers = together(hosts, save("a", 5.0), [0, 2, 3])

    with Store.open(hosts[0]) as store:
        there = {info.step: info.id for info in store.checkpoints()}
        if moment == "while it stages":
            told = [answer for answer in answers.values() if isinstance(answer, MissingRanks)]
            assert told, answers
            assert all(1 in answer.missing for answer in told), answers
            assert all(f"rank 1 (two, process {killed}) began and is not done" in str(answer) for answer in told), (
                answers
            )
            assert all(isinstance(answer, MissingRanks | RankFailed) for answer in answers.values()), answers
            assert there == {}
    if there:
        assert set(answers.values()) == set(there.values())
    again = together(hosts, save("b", PATIENT_S), list(range(RANKS))) if not there else {}
    for place in hosts:
        with Store.open(place) as store:
            loaded = store.load(1)
            assert all(np.array_equal(loaded[rank]["w"], state(rank, 1)["w"]) for rank in range(RANKS))
            assert not again or set(again.values()) == {store.info(1).id}


def fork_and_kill(place: Path, moment: str) -> int:
    """Let a process of the other host, called two, save as rank 1 and kill itself at that moment; return its number."""
    child = os.fork()
    if child == 0:
        try:
            patch = pytest.MonkeyPatch()

            def die(*_: object, **__: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            said = FileRendezvous.say_part

            def say_and_die(meeting: FileRendezvous, staging: str) -> None:
                said(meeting, staging)
                die()

            if moment == "while it stages":
                patch.setattr(save_of_ranks, "stage_part", die)
            else:
                patch.setattr(FileRendezvous, "say_part", say_and_die)
            patch.setattr(socket, "gethostname", lambda: "two")
            Store.open(place).save(state(1, 1), 1, ranks=Ranks(1, RANKS, "a", timeout_s=PATIENT_S))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return child
