"""``store.json`` and ``config.json``: read back, and anything else refused."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput, NewerFormat
from ckstore.model.settings.settings import StoreSettings, parse_config, parse_settings, render_config

UUID = "0d3c1f5e-7d0a-4c41-9b62-3f3c9a4e8a10"
CREATED = "2026-11-21T09:30:00.000000Z"
GOOD = {
    "format": "ckstore-store",
    "version": 1,
    "uuid": UUID,
    "hash": "xxh3_128",
    "chunk_bytes": 2**25,
    "created": CREATED,
}

settings = st.builds(
    StoreSettings,
    uuid=st.uuids().map(str),
    hash=st.sampled_from(["xxh3_128", "blake3"]),
    chunk_bytes=st.integers(1, 1024).map(lambda n: n * 2**20),
    created=st.datetimes().map(lambda t: t.isoformat(timespec="microseconds") + "Z"),
)


@given(made=settings)
def test_settings_are_read_back(made: StoreSettings) -> None:
    assert parse_settings(made.render(), "store.json") == made


@given(made=settings, data=st.data())
def test_a_damaged_file_is_read_or_refused_with_a_typed_error(made: StoreSettings, data: st.DataObject) -> None:
    raw = bytearray(made.render())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_settings(bytes(raw), "there")
    except (BadInput, NewerFormat) as error:
        message = str(error)
    else:
        return
    assert message.startswith("there: ")


@pytest.mark.parametrize(
    "member, value, message",
    [
        ("format", "zarr", "format: wanted 'ckstore-store', found 'zarr'"),
        ("version", 0, "version: wanted an integer from 1, found 0"),
        ("uuid", UUID.upper(), "uuid: wanted 32 lower-case hexadecimal digits"),
        ("hash", "md5", "hash must be one of xxh3_128, blake3, got 'md5'"),
        ("chunk_bytes", 2**20 + 1, "chunk_bytes must be a multiple of 1048576 .* got 1048577"),
        ("chunk_bytes", 0, "chunk_bytes must be .* got 0"),
        ("chunk_bytes", 2**31, "up to 1073741824 .* got 2147483648"),
        ("chunk_bytes", True, "chunk_bytes must be .* got True"),
        ("chunk_bytes", "1048576", "chunk_bytes must be .* got '1048576'"),
        ("created", "now", "created: wanted YYYY-MM-DD.* found 'now'"),
    ],
)
def test_other_settings_are_refused(member: str, value: object, message: str) -> None:
    data = json.dumps({**GOOD, member: value}).encode()
    with pytest.raises(BadInput, match=message) as caught:
        parse_settings(data, "there/store.json")

    assert str(caught.value).startswith("there/store.json: ")


@pytest.mark.parametrize("member", list(GOOD))
def test_every_member_is_needed(member: str) -> None:
    data = json.dumps({name: value for name, value in GOOD.items() if name != member}).encode()
    with pytest.raises(BadInput, match=member):
        parse_settings(data, "there")


def test_a_member_twice_is_refused() -> None:
    data = json.dumps(GOOD).replace('"version"', '"hash": "blake3", "version"', 1).encode()
    with pytest.raises(BadInput, match="the member 'hash' twice"):
        parse_settings(data, "there")


def test_members_that_are_not_known_are_ignored() -> None:
    made = parse_settings(json.dumps({**GOOD, "later": [1]}).encode(), "x")

    assert asdict(made) == {name: value for name, value in GOOD.items() if name not in ("format", "version")} | {"requires": ()}


@pytest.mark.parametrize("form, parse", [("ckstore-store", parse_settings), ("ckstore-config", parse_config)])
def test_a_newer_version_is_refused(form: str, parse: Any) -> None:
    with pytest.raises(NewerFormat, match="there: this ckstore reads versions up to 1, found version 2"):
        parse(json.dumps({"format": form, "version": 2}).encode(), "there")


def test_a_config_is_read_back() -> None:
    config = {"retention": {"keep_last": 3, "best": None, "within_s": float("inf")}, "n": [2**60]}

    assert parse_config(render_config(config), "x") == config
    assert parse_config(render_config({}), "x") == {}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":"ckstore-config","version":1,"$x":1}'])
def test_what_is_no_config_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match=r"^there: "):
        parse_config(data, "there")
