"""What hostile remotes hold: a good remote with one thing spoiled, or a hostile store laid out as a remote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckstore import Store
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.seal import seal
from ckstore.remote import keys
from ckstore.remote.documents.remote_info import RemoteInfo
from ckstore.remote.objects import Remote
from ckstore.remote.push import TransferLimits, push
from tests.hostile.archives_manifests import digest, dumps, framed, members_of, tensor
from tests.remote.double import Double
from tests.support.checkpoint_dirs import step_of_name

Contents = dict[str, bytes]
Spoil = Callable[[Contents], None]

_MIB = 2**20
_W = 4096
_TIME = "2026-11-26T00:00:00.000000Z"
_DIGITS = b"1" * 3_000_000
_MOST_BYTES = 64 * _MIB
"""Larger files of a hostile store are left out: objects in memory are not sparse."""


def good_contents(store: Path) -> Contents:
    """Return what a remote holds after all checkpoints of a store were pushed to it."""
    opened = Store.open(store, readonly=True)
    objects = Double()
    objects.put(keys.INFO, RemoteInfo.of(opened.settings, _TIME).render())
    push(opened._context, opened.checkpoints(), Remote("far", objects), TransferLimits())
    return dict(objects.held)


def contents_of(store: Path, info: bytes) -> Contents:
    """Return a store's files under the keys that they would have at a remote, whatever they hold."""
    found = {keys.INFO: info}
    for path in (store / "checkpoints").glob("*/*"):
        manifest = _file(path / "manifest.json")
        if manifest is None:
            continue
        step = step_of_name(path.name)
        folder = f"checkpoints/{path.parent.name}/{path.name if step is None else step}/{digest_in(manifest)}"
        for name in ("manifest.json", "plain.json", "annotations.json"):
            data = _file(path / name)
            if data is not None:
                found[f"{folder}/{name}"] = data
        for blob in (path / "blobs").glob("*") if (path / "blobs").is_dir() else ():
            data = _file(blob)
            if data is not None and is_digest(blob.name.partition(".")[0]):  # others have no key
                found[keys.blob(blob.name)] = data
    for pin in (store / "pins").glob("*") if (store / "pins").is_dir() else ():
        data = _file(pin)
        if data is not None:
            found[f"pins/{pin.name}"] = data
    return {key: data for key, data in found.items() if _is_key(key)}


def digest_in(manifest: bytes) -> str:
    """Return what a manifest says that its id is, if it has the usual frame."""
    mark = b'"manifest":{"checkpoint":"' if b'"manifest":{"checkpoint":"' in manifest[:200] else b'{"digest":"'
    found = manifest[:300].partition(mark)[2].partition(b'"')[0].decode("ascii", "replace")
    return found or digest(manifest)


def _file(path: Path) -> bytes | None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return None
    return path.read_bytes()


def _is_key(key: str) -> bool:
    """Whether objects in memory can have this key; a service that lists another one is tried in `test_service`."""
    return all(part not in ("", ".", "..") for part in key.split("/")) and key.isprintable() and key.isascii()


def manifest_key(contents: Contents, run: str = "main", step: int = 2) -> str:
    """Return the key of a manifest of the good remote."""
    return next(key for key in contents if key.startswith(f"checkpoints/{run}/{step}/") and key.endswith("t.json"))


def _set(key: str, make: Callable[[], bytes]) -> Spoil:
    def spoil(contents: Contents) -> None:
        contents[key] = make()

    return spoil


def _document(key: str, **members: Any) -> Spoil:
    """A small object with its digest, and members of it replaced."""

    def spoil(contents: Contents) -> None:
        found = json.loads(contents.get(key, b"{}"))
        found.pop("digest", None)
        contents[key] = seal(canonical_json({**found, **members}))

    return spoil


def _condemned(**members: Any) -> Spoil:
    usual: dict[str, Any] = {"format": "ckstore-remote-condemned", "version": 1, "change": ""}
    usual |= {"condemned": {}, "deleting": {}, "burnt": {}}
    return _document(keys.CONDEMNED, **{**usual, **members})


def _intent(key: str = f"intents/{'0' * 32}.json", **members: Any) -> Spoil:
    usual: dict[str, Any] = {"blobs": [], "change": "", "id": "", "life_s": 3600, "run": "main", "state": "uploading"}
    return _document(key, format="ckstore-remote-intent", version=1, step=1, writer="x", **{**usual, **members})


def _tag(name: str, **members: Any) -> Spoil:
    usual = {"format": "ckstore-remote-tag", "version": 1, "run": "main", "step": 2, "id": digest(b"other")}
    return _document(f"refs/{name}.json", **{**usual, **members})


def _manifest(change: Callable[[bytes], bytes]) -> Spoil:
    """The manifest of main@2 as other bytes under its key."""

    def spoil(contents: Contents) -> None:
        key = manifest_key(contents)
        contents[key] = change(contents[key])

    return spoil


def _forged(make: Callable[[], dict[str, Any]], blob: bytes = b"x" * _W, stored: bytes | None = None) -> Spoil:
    """A further checkpoint main@3 under its right id; `stored`: what lies under the name of its blob."""

    def spoil(contents: Contents) -> None:
        publish(contents, dumps(members_of(blob, **make())))
        contents[keys.blob(digest(blob))] = blob if stored is None else stored

    return spoil


def publish(contents: Contents, body: bytes) -> None:
    """Lay the manifest of main@3 into a remote, under the digest of its body."""
    contents[f"checkpoints/main/3/{digest(body)}/manifest.json"] = framed(body)


def _raw(body: Callable[[], bytes]) -> Spoil:
    return lambda contents: publish(contents, body())


def _blobs(change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(contents: Contents) -> None:
        for key in [key for key in contents if key.startswith(keys.BLOBS)]:
            contents[key] = change(contents[key])

    return spoil


def _many(key: Callable[[int], str], make: Callable[[int], bytes], count: int) -> Spoil:
    return lambda contents: contents.update({key(i): make(i) for i in range(count)})


def _moved(to: Callable[[str], str]) -> Spoil:
    def spoil(contents: Contents) -> None:
        key = manifest_key(contents)
        contents[to(key)] = contents.pop(key)

    return spoil


def _burnt_to_the_end(contents: Contents) -> None:
    digests = [name.digest for key in contents if (name := keys.blob_in(key)) is not None]
    batch = {"names": [f"{one}.999999999" for one in digests], "since": _TIME}
    _condemned(burnt=dict.fromkeys(digests, 999_999_999), deleting={"0" * 32: batch})(contents)


def _all_being_deleted(contents: Contents) -> None:
    names = [str(name) for key in contents if (name := keys.blob_in(key)) is not None]
    _condemned(deleting={f"{i:032x}": {"names": names, "since": _TIME} for i in range(100)})(contents)


def _without(*begin: str) -> Spoil:
    def spoil(contents: Contents) -> None:
        for key in [key for key in contents if key.startswith(begin)]:
            del contents[key]

    return spoil


def _names_of_blobs(contents: Contents) -> None:
    name = keys.blob_in(next(key for key in contents if key.startswith(keys.BLOBS)))
    assert name is not None
    for number in range(1, 20_000):
        contents[keys.blob(f"{name.digest}.{number}")] = b"x"
    del contents[keys.blob(name.digest)]


_ODD = "refs/-rf.json", "refs/latest.json", "refs/12.json", "pins/%2e%2e%2fx.json", "intents/x.json", "blobs/zz/x", "x"

CASES: dict[str, Spoil] = {
    "untouched": lambda _: None,
    # ---------------------------------------------------------------------------------------- remote.json
    "no remote.json": _without(keys.INFO),
    "remote.json of 3000000 digits": _set(keys.INFO, lambda: b'{"version":' + _DIGITS[: _MIB - 20] + b"}"),
    "remote.json larger than is read": _set(keys.INFO, lambda: b" " * (_MIB + 1)),
    "remote.json nested 100000 deep": _set(keys.INFO, lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "remote.json is a list": _set(keys.INFO, lambda: b"[]"),
    "remote.json is empty": _set(keys.INFO, lambda: b""),
    "a newer remote": _document(keys.INFO, version=2),
    "a remote that requires more": _document(keys.INFO, requires=["time travel"]),
    "a remote with an unknown hash": _document(keys.INFO, hash="../../md5"),
    "a remote with another hash": _document(keys.INFO, hash="blake3"),
    "a remote with chunks of 2^53 bytes": _document(keys.INFO, chunk_bytes=2**53),
    "a remote whose uuid is a path": _document(keys.INFO, uuid="../../../outside/thesis", store="/tmp"),
    "a remote whose uuid has a million letters": _document(keys.INFO, uuid="x" * 1_000_000),
    # ---------------------------------------------------------------------------------------- manifests
    "a manifest of 3000000 digits": _raw(lambda: b'{"sequence":' + _DIGITS + b"}"),
    "a manifest with a fraction of 3000000 digits": _raw(lambda: b'{"metrics":{"x":1.' + _DIGITS + b"}}"),
    "a manifest nested a million deep": _raw(lambda: b'{"state":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
    "a manifest that is cut": _manifest(lambda data: data[:-7]),
    "a manifest with a flipped bit": _manifest(lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:]),
    "an empty manifest": _manifest(lambda _: b""),
    "a manifest of another step": _moved(lambda key: key.replace("/main/2/", "/main/7/")),
    "a manifest of another run": _moved(lambda key: key.replace("/main/", "/best/")),
    "a manifest of another id": _moved(lambda key: key.replace(key.split("/")[3], digest(b"other"))),
    "a run that is a path": _forged(lambda: {"run": "../../outside"}),
    "blobs whose digests are paths": _forged(lambda: {"blobs": [["../../outside/thesis.txt", _W]]}),
    "one tensor of 2^61 elements": _forged(lambda: {"leaves": [tensor("w", [2**61])]}),
    "a blob of 2 GiB that has 4096 bytes": _forged(
        lambda: {
            "blobs": [[digest(b"x" * _W), 2**31]],
            "storages": [[2**31, [[digest(b"x" * _W), 0, 0, 2**31]]]],
            "leaves": [tensor("w", [2**31])],
        }
    ),
    "a terabyte in blobs that are not there": _forged(
        lambda: {
            "blobs": [[f"xxh3-{i:032x}", 2**31] for i in range(512)],
            "storages": [[2**40, [[f"xxh3-{i:032x}", i, 0, 2**31] for i in range(512)]]],
            "leaves": [tensor("w", [2**40])],
        }
    ),
    "one blob 200000 times": _forged(
        lambda: {
            "storages": [[200_000 * _W, [[digest(b"x" * _W), 0, 0, _W]] * 200_000]],
            "leaves": [tensor("w", [200_000 * _W])],
        }
    ),
    "20000 blobs that are not there": _forged(
        lambda: {"blobs": [[digest(b"x" * _W), _W], *([f"xxh3-{i:032x}", _W] for i in range(20_000))]}
    ),
    "files that lead outside": _forged(
        lambda: {
            "leaves": [],
            "state": ["dict", []],
            "files": [{"path": "../../outside/new", "kind": "file", "mode": 420, "storages": [0]}],
        }
    ),
    "a sequence at its end": _forged(lambda: {"sequence": 2**53 - 1}),
    "a message of 30 MB": _forged(lambda: {"message": "x" * 30_000_000}),
    "names of control characters": _forged(
        lambda: {
            "leaves": [tensor("\x1b[2J\n\r\0", [1])],
            "state": ["dict", [["\x1b[2J\n\r\0", ["leaf", 0]]]],
            "message": "\x1b]0;x\x07",
        }
    ),
    "20000 checkpoints that are not": _many(
        lambda i: f"checkpoints/main/{i}/{digest(b'%d' % i)}/manifest.json", lambda i: b"{}", 20_000
    ),
    "20000 checkpoints of one step": _many(
        lambda i: f"checkpoints/main/5/{digest(b'%d' % i)}/manifest.json", lambda i: b"", 20_000
    ),
    "dropped beside each checkpoint": lambda contents: contents.update(
        {key.replace("manifest.json", "dropped"): b"x" * _MIB for key in [*contents] if key.endswith("manifest.json")}
    ),
    # ---------------------------------------------------------------------------------------- blobs
    "blobs of other bytes": _blobs(lambda data: bytes(len(data))),
    "blobs with one flipped bit": _blobs(lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "blobs that are short": _blobs(lambda data: data[: len(data) // 2]),
    "blobs that are long": _blobs(lambda data: data + data),
    "blobs that are empty": _blobs(lambda _: b""),
    "no blobs": _without(keys.BLOBS),
    "20000 names of one blob": _names_of_blobs,
    "20000 blobs of nothing": _many(lambda i: keys.blob(f"xxh3-{i:032x}"), lambda _: b"", 20_000),
    # ---------------------------------------------------------------------------------------- annotations, tags, pins
    "annotations of 30000 notes": lambda contents: contents.update(
        {
            manifest_key(contents).replace("manifest.json", "annotations.json"): seal(
                canonical_json(
                    {
                        "format": "ckstore-annotations",
                        "version": 1,
                        "metrics": {},
                        "notes": [{"created": _TIME, "text": f"{i}"} for i in range(30_000)],
                    }
                )
            )
        }
    ),
    "annotations larger than are read": lambda contents: contents.update(
        {manifest_key(contents).replace("manifest.json", "annotations.json"): b" " * (17 * _MIB)}
    ),
    "annotations of digits": lambda contents: contents.update(
        {manifest_key(contents).replace("manifest.json", "annotations.json"): b'{"metrics":{"x":' + _DIGITS + b"}}"}
    ),
    "a tag of a path": _tag("best", run="../../outside"),
    "a tag of another id": _tag("best"),
    "a tag of a step without end": _tag("best", step=2**63),
    "a tag of digits": _set("refs/best.json", lambda: b'{"step":' + _DIGITS[: _MIB - 20] + b"}"),
    "a tag larger than is read": _set("refs/best.json", lambda: b" " * (_MIB + 1)),
    "5000 tags": _many(lambda i: f"refs/t{i}.json", lambda _: b"{}", 5_000),
    "5000 pins": _many(lambda i: f"pins/p{i}.json", lambda _: b"{}", 5_000),
    "a pin of a path": _document("pins/figure.json", format="ckstore-pin", version=1, run="../../x", step=2),
    "a pin larger than is read": _set("pins/figure.json", lambda: b" " * (_MIB + 1)),
    "keys of no form": lambda contents: contents.update(dict.fromkeys(_ODD, b"x")),
    # ---------------------------------------------------------------------------------------- condemned.json, intents
    "condemned.json of digits": _set(keys.CONDEMNED, lambda: b'{"version":' + _DIGITS + b"}"),
    "condemned.json of a newer version": _condemned(version=2),
    "condemned.json with names that are paths": _condemned(condemned={"../../remote.json": _TIME}),
    "condemned.json with a batch of paths": _condemned(deleting={"0" * 32: {"names": ["../x"], "since": _TIME}}),
    "condemned.json with times that no clock has": _condemned(condemned={digest(b"x"): "9999-99-99"}),
    "condemned.json with the year 9999": _condemned(condemned={digest(b"x"): "9999-12-31T23:59:59.999999Z"}),
    "names burnt to the last number": _burnt_to_the_end,
    "everything is being deleted": _all_being_deleted,
    "20000 names condemned": _condemned(condemned={f"xxh3-{i:032x}": _TIME for i in range(20_000)}),
    "an intent of digits": _set(f"intents/{'0' * 32}.json", lambda: b'{"step":' + _DIGITS + b"}"),
    "an intent that lives for ever": _intent(life_s=10**30),
    "an intent of 200000 blobs": _intent(blobs=[f"xxh3-{i:032x}" for i in range(200_000)]),
    "an intent that commits a path": _intent(state="committing", run="../../x", manifest="{}"),
    "an intent that commits another checkpoint": _intent(state="committing", id=digest(b"x"), manifest="{}"),
    "an intent of an unknown state": _intent(state="burning"),
    "2000 intents": _many(lambda i: f"intents/{i:032x}.json", lambda _: b"{}", 2_000),
    "parts and probes of no form": lambda contents: contents.update({"parts/main/x": b"x", "probe/..x": b"x"}),
}
"""Name -> what is done to a good remote."""

SHORT = (
    "untouched",
    "a manifest of 3000000 digits",
    "a manifest nested a million deep",
    "a terabyte in blobs that are not there",
    "one blob 200000 times",
    "blobs with one flipped bit",
    "20000 checkpoints of one step",
    "5000 tags",
    "names burnt to the last number",
    "an intent that commits a path",
)
"""Of these `make test` tries some, others for each commit."""
