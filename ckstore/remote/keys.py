"""The keys of the objects of a remote, and their parsers. Source: docs/format/remote-v1.md.

The key of a blob determines its content, regardless of the client that wrote it. This module checks the keys of a
listing before they are parsed into values.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

from ckstore.model.checkpoint.pins import file_name, pin_name
from ckstore.model.digest import fan_out, is_digest
from ckstore.model.names import is_run, is_tag, step_of

BLOBS = "blobs/"
CHECKPOINTS = "checkpoints/"
TAGS = "refs/"
PINS = "pins/"
INTENTS = "intents/"
CLAIMS = "claims/"
RUNS = "runs/"
PROBE = "probe/"
FOLDERS = (BLOBS, CHECKPOINTS, TAGS, PINS, INTENTS, CLAIMS, RUNS, PROBE)
CONDEMNED = "condemned.json"
INFO = "remote.json"
_MANIFEST = "manifest.json"
_PLAIN = "plain.json"
_ANNOTATIONS = "annotations.json"
_DROPPED = "dropped"
OF_PLACE = (_MANIFEST, _PLAIN, _ANNOTATIONS, _DROPPED)
"""The last part of the key of each document of a checkpoint."""
_SUFFIX = ".json"
_UUID = re.compile(r"[0-9a-f]{32}\Z")
_STORE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z")


class Place(NamedTuple):
    """The location of a checkpoint on a remote. Checkpoints of the same run and step differ in their ids."""

    run: str
    step: int
    id: str

    @property
    def run_step(self) -> tuple[str, int]:
        """The run and the step."""
        return self.run, self.step

    @property
    def name(self) -> str:
        """``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    @property
    def manifest(self) -> str:
        """The key of its manifest, which is written last."""
        return self._key(_MANIFEST)

    @property
    def plain(self) -> str:
        """The key of its plain manifest, which exists if the checkpoint is encoded."""
        return self._key(_PLAIN)

    @property
    def annotations(self) -> str:
        """The key of its annotations."""
        return self._key(_ANNOTATIONS)

    @property
    def dropped(self) -> str:
        """The key of its deletion mark, the object that marks it as deleted."""
        return self._key(_DROPPED)

    def _key(self, last: str) -> str:
        return f"{CHECKPOINTS}{self.run}/{self.step}/{self.id}/{last}"


def blob(name: str) -> str:
    """Return the key of a blob, given its name: a digest, or a digest with a number."""
    return f"{BLOBS}{fan_out(name.partition('.')[0])}/{name}"


class BlobName(NamedTuple):
    """A name of a blob. Number 0 stands for the bare digest. When a name is retired, the next number replaces it."""

    digest: str
    number: int

    def __str__(self) -> str:
        return self.digest if not self.number else f"{self.digest}.{self.number}"


def blob_name(text: str) -> BlobName | None:
    """Parse the name of a blob; return None if it is not valid."""
    digest, point, number = text.partition(".")
    if not is_digest(digest) or (point and not _NUMBER.match(number)):
        return None
    return BlobName(digest, int(number) if point else 0)


def blob_in(key: str) -> BlobName | None:
    """Return the name of the blob with this key, or None if it is not the key of a blob."""
    name = blob_name(key.rpartition("/")[2])
    return name if name is not None and key == blob(str(name)) else None


def place_in(key: str, lasts: Container[str] = (_MANIFEST,)) -> Place | None:
    """Return the checkpoint to which the key of a document belongs, or None if the key has another form."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != CHECKPOINTS[:-1] or parts[4] not in lasts:
        return None
    step = step_of(parts[2])
    if not is_run(parts[1]) or step is None or not is_digest(parts[3]):
        return None
    return Place(parts[1], step, parts[3])


def claim(store: str, place: Place, uuid: str) -> str:
    """Return the key of a claim of a store on a checkpoint."""
    return f"{CLAIMS}{store}/{place.run}/{place.step}/{place.id}/{uuid}{_SUFFIX}"


def claim_in(key: str) -> tuple[str, Place, str] | None:
    """Return the store, the checkpoint and the uuid of the claim with this key, or None if it has another form."""
    parts = key.split("/")
    if len(parts) != 6 or parts[0] != CLAIMS[:-1] or not _STORE.match(parts[1]):
        return None
    step, uuid = step_of(parts[3]), parts[5].removesuffix(_SUFFIX)
    if not is_run(parts[2]) or step is None or not is_digest(parts[4]) or not _UUID.match(uuid):
        return None
    place = Place(parts[2], step, parts[4])
    return (parts[1], place, uuid) if key == claim(parts[1], place, uuid) else None


def owner(run: str) -> str:
    """Return the key of the object that names the owner of a run, the store that mirrors the run."""
    return f"{RUNS}{run}/owner.json"


def tag(name: str) -> str:
    """Return the key of a tag."""
    return f"{TAGS}{name}{_SUFFIX}"


def tag_in(key: str) -> str | None:
    """Return the tag with this key, or None if it is not the key of a tag."""
    name = key.removeprefix(TAGS).removesuffix(_SUFFIX)
    return name if is_tag(name) and key == tag(name) else None


def pin(name: str) -> str:
    """Return the key of a pin."""
    return f"{PINS}{file_name(name)}"


def pin_in(key: str) -> str | None:
    """Return the name of the pin with this key, or None if it is not the key of a pin."""
    return pin_name(key.removeprefix(PINS)) if key.startswith(PINS) else None
