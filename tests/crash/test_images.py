"""Which images a log allows: laws over drawn logs, compared with what is computed byte by byte."""

from __future__ import annotations

from itertools import chain, combinations, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.crash.images import ALL_SUBSETS_OF, SECTOR, TORN_AT, Image, Log, choose
from tests.crash.recorder import Entry, read_log

pytestmark = [pytest.mark.crash, pytest.mark.property]

_SECTORS = 6


@st.composite
def _write(draw: st.DrawFn) -> Entry:
    first = draw(st.integers(0, _SECTORS - 1))
    data = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=_SECTORS - first))
    return Entry("write", first * SECTOR, b"".join(letter.encode() * SECTOR for letter in data))


def entries(most: int = 14) -> st.SearchStrategy[list[Entry]]:
    return st.lists(_write() | st.just(Entry("flush")), max_size=most)


def content(log: Log, image: Image, base: bytes = b"") -> bytes:
    disk = bytearray(base.ljust(_SECTORS * SECTOR, b"\0"))
    for number, nbytes in log.contents(image):
        entry = log.entries[number]
        disk[entry.offset : entry.offset + nbytes] = entry.data[:nbytes]
    return bytes(disk)


def images(log: Log) -> list[Image]:
    return [*log.prefixes(), *log.subsets(), *islice(log.drawn(7), 30)]


@given(entries())
def test_an_image_has_all_writes_before_the_last_flush_and_none_that_was_not_made(made: list[Entry]) -> None:
    log = Log(made)

    for image in images(log):
        flushes = [number for number in range(image.known) if made[number].what == "flush"]
        # The flush at which the power goes was not answered.
        durable = [number for number in range(max(flushes, default=0)) if made[number].what == "write"]
        assert set(durable) <= set(image.writes)
        assert all(number < image.known and made[number].what == "write" for number in image.writes)


@given(entries(), st.binary(max_size=64))
def test_two_images_have_one_digest_if_and_only_if_the_disk_holds_the_same(made: list[Entry], seen: bytes) -> None:
    base = b"a" * SECTOR + seen
    log = Log(made, base=lambda offset, nbytes: base[offset : offset + nbytes])
    by_digest: dict[bytes, set[bytes]] = {}
    by_content: dict[bytes, set[bytes]] = {}
    for image in images(log):
        by_digest.setdefault(log.digest(image), set()).add(content(log, image, base))
        by_content.setdefault(content(log, image, base), set()).add(log.digest(image))

    assert all(len(same) == 1 for same in by_digest.values())
    assert all(len(same) == 1 for same in by_content.values())


@given(entries(8))
def test_every_prefix_and_every_subset_of_few_writes_is_among_the_chosen(made: list[Entry]) -> None:
    log = Log(made)
    numbers = [number for number, entry in enumerate(made) if entry.what == "write"]
    wanted = {content(log, Image(tuple(numbers[:count]), None, 0)) for count in range(len(numbers) + 1)}
    durable: list[int] = []
    since: list[int] = []
    for number, entry in enumerate([*made, Entry("flush")]):
        if entry.what == "write":
            since.append(number)
        elif len(since) <= ALL_SUBSETS_OF:
            every = chain.from_iterable(combinations(since, count) for count in range(len(since) + 1))
            wanted |= {content(log, Image((*durable, *chosen), None, 0)) for chosen in every}
        if entry.what == "flush":
            durable, since = durable + since, []

    chosen_images = [case.image for case in choose(log, 1, 0)]

    assert {content(log, image) for image in chosen_images} == wanted
    assert len(chosen_images) == len(wanted)


def test_a_torn_write_keeps_whole_blocks_from_its_beginning() -> None:
    nbytes = TORN_AT * 2
    log = Log([Entry("write", SECTOR, b"a" * nbytes)])
    torn = {image.torn for image in islice(log.drawn(1), 300)}
    small = Log([Entry("write", SECTOR, b"a" * SECTOR)])

    assert torn == {None, TORN_AT - SECTOR, 2 * TORN_AT - SECTOR}
    assert {image.torn for image in islice(small.drawn(1), 300)} == {None}
    half = Log([Entry("write", SECTOR, b"a" * (TORN_AT - SECTOR))])
    assert log.digest(Image((0,), TORN_AT - SECTOR, 1)) == half.digest(Image((0,), None, 1))
    assert log.contents(Image((0,), TORN_AT - SECTOR, 1)) == [(0, TORN_AT - SECTOR)]


@given(entries(), st.integers())
def test_the_same_seed_gives_the_same_images(made: list[Entry], seed: int) -> None:
    assert choose(Log(made), seed, 40) == choose(Log(made), seed, 40)


def test_what_must_hold_of_an_image_is_what_was_acknowledged_when_the_power_went() -> None:
    begin, done = (Entry("mark", 0, f'["{what}", "main", 1, "first"]\n'.encode()) for what in ("begin", "done"))
    first, second, third = (Entry("write", number * SECTOR, b"a" * SECTOR) for number in range(3))
    log = Log(
        [begin, first, Entry("flush"), second, Entry("flush"), done, third, Entry("flush")], '["made", "", 0, null]\n'
    )

    promised = {case.image.writes: case.promised for case in choose(log, 1, 0)}

    assert all(one.store for one in promised.values())
    # Without the first write the power went before its flush, with the third it went after the save was acknowledged.
    assert {writes: one.options["main", 1] for writes, one in promised.items()} == {
        (): {None, "first"},
        (1,): {None, "first"},
        (1, 3): {"first"},
        (1, 3, 6): {"first"},
    }


def test_of_two_stories_that_end_in_one_image_both_must_hold() -> None:
    write = Entry("write", 0, b"a" * SECTOR)
    begin, done = (Entry("mark", 0, f'["{what}", "main", 1, "first"]\n'.encode()) for what in ("begin", "done"))

    # What was written before it was begun cannot be what makes it durable: no disk keeps both promises.
    cases = choose(Log([write, Entry("flush"), begin, write, Entry("flush"), done]), 1, 0)
    assert [case.promised.options.get(("main", 1), {None}) for case in cases] == [{None}, set()]
    # The power may go before it is begun, or before it is acknowledged.
    cases = choose(Log([write, Entry("flush"), begin, write]), 1, 0)
    assert [case.promised.options.get(("main", 1), {None}) for case in cases] == [{None}, {None}]


def test_a_log_that_ends_within_an_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"w" + (512).to_bytes(8, "little") + (3).to_bytes(4, "little") + b"abc")

    assert read_log(path) == [Entry("write", 512, b"abc")]
    for cut in (path.stat().st_size - 1, 5):
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ValueError, match="ends within an entry"):
            read_log(path)
