"""The journal says what happened, in lines that may be torn, and decides nothing."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, CkstoreError, RetentionPolicy, Store
from ckstore.model.reports.event import KINDS, LINE_MOST_BYTES, Event, parse_line
from ckstore.ops import events
from tests.support.damage import flip
from tests.support.look import directory_of


def save(store: Store, step: int, run: str = "main", **options: Any) -> None:
    store.save({"w": np.full(5000, step)}, step=step, run=run, **options)


def happened(store: Store, **asked: Any) -> list[tuple[str, str]]:
    return [(event.event, event.name) for event in store.events(**asked)]


def test_saves_drops_failures_and_what_was_freed_are_there_with_the_reason(store: Store) -> None:
    for step in range(3):
        save(store, step)
    save(store, 2, if_exists="replace")
    store.save({"w": 1}, step=2, if_exists="replace")
    with pytest.raises(CkstoreError):
        save(store, 2)
    store.prune(RetentionPolicy(keep_last=1))
    store.delete(2)

    assert happened(store)[:5] == [
        ("saved", "main@0"),
        ("saved", "main@1"),
        ("saved", "main@2"),
        ("dropped", "main@2"),
        ("replaced", "main@2"),
    ]
    by_event = {event.event: event for event in store.events()}
    assert by_event["failed"].why.startswith("StepExists: ")
    dropped = [event.why for event in store.events() if event.event == "dropped"]
    assert all(why.startswith("replaced by ") for why in dropped[:2])
    assert dropped[2:] == [
        "it is not the newest",
        "it is not the newest",
        "by hand",
    ]
    assert by_event["freed"].nbytes
    assert by_event["saved"].nbytes
    assert by_event["saved"].pid == os.getpid()


def test_damage_and_its_repair_are_there(store: Store) -> None:
    save(store, 1)
    flip(next((directory_of(store, store.info(1)) / "blobs").iterdir()))
    store.verify()
    store.verify()
    save(store, 2)
    store.save({"w": np.full(5000, 1)}, step=3)

    found = [event.event for event in store.events()]
    assert found.count("damaged") == 1, "said once, not by each look"
    assert store.verify().ok


def test_since_and_run_choose(store: Store) -> None:
    save(store, 1, "a")
    save(store, 1, "b")

    assert happened(store, run="a") == [("saved", "a@1")]
    assert len(happened(store, since="1h")) == 2
    assert happened(store, since=datetime.now(UTC) + timedelta(hours=1)) == []
    with pytest.raises(BadInput, match="since: wanted"):
        store.events("yesterday")


def test_a_torn_line_and_foreign_ones_are_passed_over(store: Store) -> None:
    save(store, 1)
    path = store.path / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"\xff{]\n[]\n" + whole + b'{"event": "exploded", "time": "x"}\n' + whole[: len(whole) // 2])
    save(store, 2)
    save(store, 3)

    assert happened(store) == [("saved", "main@1"), ("saved", "main@2"), ("saved", "main@3")]
    path.unlink()
    assert happened(store) == []


def test_neither_a_pipe_nor_a_symlink_in_its_place_stops_or_leads_a_save(store: Store, tmp_path: Any) -> None:
    path = store.path / "events.jsonl"
    os.mkfifo(path)
    save(store, 1)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    save(store, 2)

    assert not (tmp_path / "elsewhere").exists()
    assert store.latest() is not None
    path.unlink()


def test_lines_of_several_threads_are_whole_and_the_log_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 20_000)
    event = Event("2026-11-21T09:30:00.000000Z", "failed", "main", why="x" * 5000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: events._append(store._context.layout, event), range(200)))

    logs = [store.path / name for name in (events.EVENTS, events.OLDER)]
    # If the last line was the one that filled the log, the log has just become the older one.
    size = sum(log.stat().st_size for log in logs if log.exists())
    assert size <= 2 * (20_000 + 4 * LINE_MOST_BYTES)
    lines = (store.path / events.OLDER).read_bytes().split()
    assert all(json.loads(line)["event"] == "failed" for line in lines)


def test_who_follows_gets_each_event_once_also_when_the_log_turns_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 2000)
    monkeypatch.setattr(events, "_POLL_S", 0.0)
    given = events.following(store._context)
    got = []
    for step in range(60):
        events.note(store._context, "saved", ("main", step))
        got.append(next(given).step)

    assert got == [*range(60)]
    assert len(store.events()) < 60, "it did turn over"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere"), os.mkdir])
def test_what_lies_in_its_place_is_no_news_and_costs_no_report(store: Store, make: Any, tmp_path: Any) -> None:
    make(store.path / "events.jsonl")
    save(store, 1)

    assert events.journal_stamp(store._context.layout) == (0, 0)
    assert "the events: " in store.report(tmp_path / "report.html").html


def test_a_reader_notes_nothing(store: Store) -> None:
    save(store, 1)
    before = (store.path / "events.jsonl").read_bytes()
    Store.open(store.path, readonly=True).load(1)

    assert (store.path / "events.jsonl").read_bytes() == before


def test_the_longest_line_is_short_enough() -> None:
    event = Event("2026-11-21T09:30:00.000000Z", "failed", "r" * 100, 2**53, "i" * 71, 2**53, "\U0001f600" * 5000, 1, 1)

    assert len(event.line()) <= LINE_MOST_BYTES
    assert parse_line(event.line().rstrip()) is not None


@pytest.mark.parametrize(
    "page, after", [("format/v1.md", "`event` is one of"), ("reference/command-line.md", "| `event` |")]
)
def test_the_pages_list_each_kind(page: str, after: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8").split(after)[1]

    assert [kind for kind in KINDS if f"`{kind}`" not in text.split("\n\n")[0]] == []
