"""The engine fulfils the contract of `Objects` in memory and on an S3 service, even with lost requests or responses."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckstore.errors import RemoteDenied, RemoteError, RemoteFull, RemoteUnavailable
from ckstore.remote.objects import Objects
from ckstore.remote.service import engine, engine_calls, engine_clients
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.directory_objects import DirectoryObjects
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.support.s3_proxy import Fault, Proxy
from tests.support.s3_server import KEY, SECRET, Habits, Service, s3_service


@pytest.fixture(params=["memory", "s3", "hub", "directory"])
def objects(request: pytest.FixtureRequest, memory: Target, tmp_path: Path) -> Objects:
    """Return objects in memory, those of the service, as it is and as the Hub's gateway, and those in a directory."""
    if request.param == "memory":
        return ServiceObjects(memory)
    if request.param == "directory":
        return DirectoryObjects(Target("directory", str(tmp_path)))
    service: Service = request.getfixturevalue("service")
    if request.param == "hub":
        service.habits = Habits(namespace="org", redirects=True)
    return ServiceObjects(service.target("run"))


def test_written_bytes_are_read_back(objects: Objects) -> None:
    data = random.Random(1).randbytes(3_000_000)
    listed = objects.put("blobs/ab/x", memoryview(data))
    into = bytearray(1_500_000)

    assert listed.key == "blobs/ab/x"
    assert listed.nbytes == len(data)
    assert listed.tag
    assert objects.get("blobs/ab/x", len(data)) == data
    assert objects.read_into("blobs/ab/x", 1_000_000, memoryview(into))
    assert bytes(into) == data[1_000_000:2_500_000]
    assert objects.head("blobs/ab/x") == listed._replace(modified=objects.head("blobs/ab/x").modified)  # type: ignore[union-attr]


def test_a_missing_object_is_reported_as_missing(objects: Objects) -> None:
    assert objects.get("blobs/ab/x", 10) is None
    assert objects.head("blobs/ab/x") is None
    assert not objects.read_into("blobs/ab/x", 0, memoryview(bytearray(3)))
    assert not objects.read_into("blobs/ab/x", 0, memoryview(bytearray()))
    objects.delete(["blobs/ab/x", "y"])
    assert objects.update("x", b"1", objects.send("y", b"1")) is None


def test_an_object_above_the_size_limit_is_refused(objects: Objects) -> None:
    objects.put("x", b"12345")

    with pytest.raises(RemoteError, match="5 bytes, more than 4"):
        objects.get("x", 4)


def test_a_write_of_many_parts_may_take_longer_than_other_calls(
    memory: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    real = obstore.put

    def slow(*args: Any, **how: Any) -> Any:
        time.sleep(0.6)
        return real(*args, **how)

    monkeypatch.setattr(obstore, "put", slow)
    monkeypatch.setattr(engine_calls, "_CALL_S", 0.2)
    monkeypatch.setattr(engine, "_MULTIPART_BYTES", 2**20)
    monkeypatch.setattr(engine, "_PART_BYTES", 2**19)
    objects = ServiceObjects(memory)

    assert objects.send("large", bytes(2**21))
    with pytest.raises(RemoteUnavailable, match=r"no answer came within 0\.2 s"):
        objects.send("small", b"1")


@pytest.mark.parametrize("others", [False, True])
def test_the_tag_returned_by_a_swap_is_never_that_of_another_clients_write(
    service: Service, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """At a service whose responses to writes have no tag, like some gateways."""
    objects, other = ServiceObjects(service.target("run")), ServiceObjects(service.target("run"))
    first = objects.put("x", b"1").tag
    real = objects._send

    def send(*args: Any) -> Any:
        real(*args)
        if others:
            other.send("x", b"another")
        return {}

    monkeypatch.setattr(objects, "_send", send)
    mark = objects.update("x", b"2", first)
    monkeypatch.undo()

    assert mark is not None
    assert (objects.update("x", b"3", mark) is None) == others
    assert objects.get("x", 10) == (b"another" if others else b"3")


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_a_range_beyond_the_end_is_an_error(objects: Objects, offset: int) -> None:
    objects.put("x", b"12345")

    with pytest.raises(RemoteError):
        objects.read_into("x", offset, memoryview(bytearray(3)))


def test_a_listing_may_begin_in_the_middle_of_a_name(objects: Objects) -> None:
    keys = ["blobs/ab/d", "blobs/ab/d.1", "blobs/ab/d.2", "blobs/ab/da", "blobs/ac/d", "refs/x"]
    for key in keys:
        objects.put(key, key.encode())

    assert [one.key for one in objects.list("")] == keys
    assert [one.key for one in objects.list("blobs/ab/d.")] == keys[1:3]
    assert [one.key for one in objects.list("blobs/a")] == keys[:5]
    assert [one.key for one in objects.list("blobs/ab/")] == keys[:4]
    assert [one.nbytes for one in objects.list("refs/")] == [6]
    assert not list(objects.list("nothing/"))


def test_a_long_listing_has_every_object(service: Service) -> None:
    objects = ServiceObjects(service.target())
    service.objects.update({f"blobs/ab/{i:05}": (b"", '"0"', datetime.now(UTC)) for i in range(2500)})

    assert [one.key for one in objects.list("blobs/")] == [f"blobs/ab/{i:05}" for i in range(2500)]


def test_other_prefixes_of_the_bucket_are_not_listed(service: Service) -> None:
    one, other = ServiceObjects(service.target("run")), ServiceObjects(service.target("run-2"))
    other.put("x", b"1")

    assert list(one.list("")) == []
    assert one.get("x", 10) is None


def test_an_object_is_created_once(objects: Objects) -> None:
    assert objects.create("x", b"1")
    assert objects.create("x", b"1")
    assert not objects.create("x", b"2")
    assert objects.get("x", 1) == b"1"


def test_an_update_needs_the_current_version(objects: Objects) -> None:
    first = objects.send("x", b"1")
    second = objects.update("x", b"2", first)

    assert second is not None
    assert objects.update("x", b"3", first) is None
    assert objects.get("x", 1) == b"2"
    assert objects.update("x", b"4", second) is not None


def test_every_successful_one_of_racing_updates_counts(objects: Objects) -> None:
    objects.put("x", b"0 start")

    def add(name: str) -> None:
        for _ in range(5):
            while True:
                head = objects.head("x")
                assert head is not None
                value = int((objects.get("x", 100) or b"").split()[0])
                # Read again: the version must be that of the bytes.
                if objects.head("x") == head and objects.update("x", f"{value + 1} {name}{value}".encode(), head.tag):
                    break

    threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (objects.get("x", 100) or b"").split()[0] == b"15"


def test_a_removed_object_no_longer_exists(objects: Objects) -> None:
    for i in range(5):
        objects.put(f"x{i}", b"1")
    objects.delete(f"x{i}" for i in range(4))

    assert [one.key for one in objects.list("")] == ["x4"]


# Faults on the way


def test_a_create_with_a_lost_response_counts_as_done(through: Target, proxy: Proxy, service: Service) -> None:
    proxy.once("lose", of="PUT")

    assert ServiceObjects(through).create("x", b"mine")
    assert service.bytes_of("run/x") == b"mine"


def test_a_create_that_did_not_arrive_is_sent_again(through: Target, proxy: Proxy, service: Service) -> None:
    proxy.once("drop", "cut", "503", of="PUT")

    assert ServiceObjects(through).create("x", b"mine")
    assert service.bytes_of("run/x") == b"mine"


def test_a_conflict_without_an_object_is_retried() -> None:
    with s3_service(Habits(conflicts=2)) as service:
        assert ServiceObjects(service.target()).create("x", b"mine")
        assert service.bytes_of("x") == b"mine"


def test_a_conflict_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_FIRST_PAUSE_S", 0.001)
    with s3_service(Habits(conflicts=1000)) as service, pytest.raises(RemoteUnavailable, match="refused 6 times"):
        ServiceObjects(service.target()).create("x", b"mine")


def test_a_create_answered_with_409_compares_the_object() -> None:
    with s3_service(Habits(loser=409)) as service:
        objects = ServiceObjects(service.target())
        objects.put("x", b"other")

        assert not objects.create("x", b"mine.")
        assert objects.create("x", b"other")


def test_an_update_with_a_lost_response_counts_as_done(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    first = objects.send("x", b"1")
    proxy.once("lose", of="PUT")
    second = objects.update("x", b"2", first)

    assert second is not None
    assert objects.update("x", b"3", second) is not None


def test_an_update_that_did_not_arrive_is_sent_again(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    first = objects.send("x", b"1")
    proxy.once("drop", "500", of="PUT")

    assert objects.update("x", b"2", first) is not None
    assert objects.get("x", 1) == b"2"


@pytest.mark.parametrize("fault", ["500", "503", "drop", "lose", "cut"])
def test_a_write_is_repeated(through: Target, proxy: Proxy, service: Service, fault: Fault) -> None:
    proxy.once(fault, of="PUT")
    ServiceObjects(through).put("x", b"1" * 100_000)

    assert service.bytes_of("run/x") == b"1" * 100_000


def test_a_write_that_arrives_twice_counts_once(through: Target, proxy: Proxy, service: Service) -> None:
    proxy.once("repeat", of="PUT")

    assert ServiceObjects(through).create("x", b"1")
    assert service.bytes_of("run/x") == b"1"


def test_a_body_that_was_changed_on_the_way_is_refused(through: Target, proxy: Proxy, service: Service) -> None:
    proxy.always("flip", of="PUT")
    with pytest.raises(RemoteError, match=r"writing x at s3://ck-test/run .* failed: .*400"):
        ServiceObjects(through).put("x", b"1" * 1000)

    assert service.objects == {}


def test_an_interrupted_read_continues_at_its_offset(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    data = random.Random(2).randbytes(2_000_000)
    objects.put("x", data)
    into = bytearray(len(data))
    proxy.once("truncate", of="GET")

    assert objects.read_into("x", 0, memoryview(into))
    assert bytes(into) == data


def test_an_answer_that_is_always_short_is_an_error(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    objects.put("x", b"1" * 1000)
    proxy.always("truncate", of="GET")

    with pytest.raises(RemoteUnavailable):
        objects.read_into("x", 0, memoryview(bytearray(1000)))


def test_nothing_is_verified_on_reading(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    objects.put("x", b"1" * 1000)
    proxy.once("flip-answer", of="GET")

    assert objects.get("x", 1000) != b"1" * 1000


def test_a_removal_is_sent_once(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    objects.put("x", b"1")
    proxy.once("lose", of="POST")

    with pytest.raises(RemoteUnavailable, match="removing 1 objects"):
        objects.delete(["x"])
    assert sum("POST" in line for line in proxy.seen) == 1


def test_a_service_that_sends_whole_objects_for_ranges_can_be_read() -> None:
    with s3_service(Habits(ranges=False)) as service:
        target = service.target()
        ServiceObjects(target).put("x", bytes(range(200)))
        into = bytearray(50)

        with pytest.raises(RemoteError):
            ServiceObjects(target).read_into("x", 20, memoryview(into))
        assert ServiceObjects(target, Abilities(ranges=False)).read_into("x", 20, memoryview(into))
        assert bytes(into) == bytes(range(20, 70))


def test_a_service_that_expects_tags_without_quotes_gets_them() -> None:
    with s3_service(Habits(conditions="unquoted")) as service:
        quoted, unquoted = ServiceObjects(service.target()), ServiceObjects(service.target(), Abilities(cas="unquoted"))
        first = quoted.send("x", b"1")

        assert quoted.update("x", b"2", first) is None
        assert unquoted.update("x", b"2", first) is not None
        assert unquoted.update("x", b"3", first) is None


# Waiting


def test_a_call_is_interrupted_at_once(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    asked = proxy.interrupt("stall")
    with pytest.raises(KeyboardInterrupt):
        objects.get("x", 10)

    # Measured: within 0.3 s. A machine with other work may take longer, but a call that is not interrupted takes 30 s.
    assert time.monotonic() - asked[0] < 20


def test_close_ends_the_waits_of_all_threads(through: Target, proxy: Proxy) -> None:
    objects = ServiceObjects(through)
    proxy.always("stall")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            objects.get("x", 10)
        except RemoteError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    objects.close()
    for thread in threads:
        thread.join(5)

    assert [str(error) for error in errors] == ["the remote was closed"] * 3
    with pytest.raises(RemoteUnavailable, match="was closed"):
        objects.head("x")


def test_a_process_ends_while_a_call_stands_still(through: Target, proxy: Proxy) -> None:
    proxy.always("stall")
    program = (
        "import sys, threading\n"
        "from ckstore.remote.service.engine import ServiceObjects\n"
        "from ckstore.remote.service.target import Target\n"
        f"objects = ServiceObjects(Target('url', {through.address!r}, {through.endpoint!r}))\n"
        "threading.Thread(target=objects.get, args=('x', 10), daemon=True).start()\n"
        "threading.Event().wait(0.3)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


@pytest.mark.parametrize("objects", ["memory", "s3"], indirect=True)
def test_a_forked_child_is_refused(objects: Objects) -> None:
    objects.put("x", b"1")
    reading, writing = multiprocessing.get_context("fork").Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        # It hangs where it is not refused; a handler of the parent must not keep it alive.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            objects.get("x", 1)
        except RemoteError as error:
            writing.send(str(error))
        try:
            ServiceObjects(Target("url", "memory://other"))
        except RemoteError as error:
            writing.send(str(error))
        os._exit(0)
    os.waitpid(pid, 0)

    assert reading.poll(5)
    assert f"process {pid} was forked after process {os.getpid()} had used a remote" in reading.recv()
    assert "start it by spawn" in reading.recv()
    reading.close()
    writing.close()


# Secrets


def test_no_text_contains_secrets(
    through: Target, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(engine, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(engine_clients, "_RETRIES", 0)
    objects = ServiceObjects(through)
    texts, denied = [repr(objects), str(through), repr(through)], 0
    for fault in ("403", "500", "drop", "409", "412"):
        proxy.always(fault)
        for call in (
            lambda: objects.get("x", 10),
            lambda: objects.put("x", b"1"),
            lambda: objects.create("x", b"1"),
            lambda: objects.delete(["x"]),
            lambda: list(objects.list("")),
        ):
            error = error_of(call)
            if error is not None:
                texts += [str(error), "".join(traceback.format_exception(error)), repr(pickle.dumps(error))]
                denied += isinstance(error, RemoteDenied)
    texts.append(caplog.text)

    assert denied == 5
    assert len(texts) > 40
    for text in texts:
        assert SECRET not in text
        assert KEY not in text
        assert "Debug source" not in text
        assert "Signature" not in text
    with pytest.raises(RemoteError, match="cannot be pickled"):
        pickle.dumps(objects)


def test_an_error_names_the_operation_and_the_target(through: Target, proxy: Proxy) -> None:
    proxy.always("403")

    with pytest.raises(
        RemoteDenied, match=r"reading x at s3://ck-test/run \(http://127.0.0.1:\d+\) was refused: "
    ) as raised:
        ServiceObjects(through).get("x", 10)
    assert "check the credentials" in raised.value.hint
    assert len(raised.value.message) < 500
    # The same try again has the same message: it is noted once.
    assert raised.value.message == str(error_of(lambda: ServiceObjects(through).get("x", 10))).partition(" (check")[0]


def test_a_full_bucket_is_distinguished_from_wrong_credentials(through: Target, service: Service) -> None:
    service.habits.is_full = True
    objects = ServiceObjects(through)

    with pytest.raises(RemoteFull, match=r"the bucket is full.*QuotaExceeded") as raised:
        objects.put("x", b"1")

    assert (
        raised.value.hint
        == "raise its quota, or free space with ckstore remote prune NAME, which first needs a little space"
    )
    assert raised.value.exit_status == 6
    with pytest.raises(RemoteFull):
        objects.create("x", b"1")


def error_of(call: Callable[[], object]) -> RemoteError | None:
    """Return the error that a call raises."""
    try:
        call()
    except RemoteError as error:
        return error
    return None
