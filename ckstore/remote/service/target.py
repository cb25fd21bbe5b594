"""The target of a remote: a directory, a prefix of object storage, or another store. This module opens nothing."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import unquote, urlsplit

from ckstore.errors import BadInput
from ckstore.model.document import refuse
from ckstore.model.names import expanded

Kind = Literal["store", "directory", "url"]
"""A directory with a store, a directory with objects, or a prefix of object storage."""

SCHEMES: Final = ("s3", "gs", "az", "memory")
"""``memory`` keeps objects in this process, for tests."""

# The names of buckets, accounts or containers that services accept. They become a part of URLs.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9._=+-]{1,255}\Z")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):", re.IGNORECASE)  # a directory with such a name is written ./s3:
_URL_HOW = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
_FILE = "file://"
_HUB = "hf://buckets/"
HUB_ENDPOINT = "https://s3.hf.co"
"""The S3 gateway of Hugging Face. The namespace is a part of the path of the endpoint."""
_NO_SECRETS = "provide credentials by the environment, a profile or a role: they are never stored"


@dataclass(frozen=True, slots=True)
class Target:
    """The location of a remote.

    Attributes:
        kind: ``store`` for a directory with a ckstore store, which is only read. ``directory`` for a directory with the
            objects of a remote. ``url`` for object storage.
        address: The absolute path of the directory, or the URL without a slash at its end.
        endpoint: URL of an S3-compatible service or of an emulator. If "", the URL in the environment or the provider's
            default.
        region: The region of an S3 bucket. If "", the region in the environment.
    """

    kind: Kind
    address: str
    endpoint: str = ""
    region: str = ""

    def __post_init__(self) -> None:
        if self.kind != "url":
            if not self.address.startswith("/") or "\0" in self.address:
                raise BadInput(f"a directory is given by its absolute path, got {self.address!r}")
            if self.endpoint or self.region:
                raise BadInput("a directory has neither an endpoint nor a region", hint=f"give a URL: {_URL_HOW}")
        else:
            _check_url(self.address)
            if self.endpoint:
                check_endpoint(self.endpoint)
        if self.region and _REGION.match(self.region) is None:
            raise BadInput(f"a region has letters, digits and dashes, got {self.region!r}")

    def __str__(self) -> str:
        return f"{self.address} ({self.endpoint})" if self.endpoint else self.address

    @property
    def scheme(self) -> str:
        """``s3``, ``gs``, ``az`` or ``memory``; "" for a directory."""
        return self.address.partition("://")[0] if self.kind == "url" else ""

    @property
    def bucket(self) -> str:
        """The bucket or container; "" for a directory."""
        return urlsplit(self.address).netloc if self.kind == "url" else ""

    @property
    def prefix(self) -> str:
        """The prefix of all keys of the remote, which is "" or ends with a slash."""
        path = urlsplit(self.address).path.strip("/") if self.kind == "url" else ""
        return f"{path}/" if path else ""

    @property
    def path(self) -> Path:
        """The directory.

        Raises:
            BadInput: The target is a URL.
        """
        if self.kind == "url":
            raise BadInput(f"{self.address} is not a directory")
        return Path(self.address)

    def to_json(self) -> dict[str, Any]:
        """Return the value that ``config.json`` stores."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Target:
        """Parse the value in ``config.json``; `where` names the file in errors."""
        if not isinstance(value, dict) or value.get("kind") not in get_args(Kind):
            refuse(where, "target", f"an object with a kind, one of {', '.join(get_args(Kind))}", value)
        texts = [value.get("address"), value.get("endpoint", ""), value.get("region", "")]
        if not all(isinstance(text, str) for text in texts):
            refuse(where, "target", "texts", value)
        try:
            return cls(value["kind"], *texts)
        except BadInput as error:
            raise BadInput(f"{where}: {error.message}", hint=error.hint) from error


def parse_target(text: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None) -> Target:
    """Parse the address of a remote, which is a URL without credentials or a directory."""
    if isinstance(text, str) and text.lower().startswith(_FILE):
        host, slash, path = text[len(_FILE) :].partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise BadInput(f"a directory is file:///PATH, with three slashes, got {text!r}")
        text = slash + unquote(path)
    if isinstance(text, str) and text.lower().startswith("hf://"):
        return _hub_target(text, is_other_place=bool(endpoint or region))
    if isinstance(text, str) and "://" in text:
        # Trailing and double slashes are removed, because they would change the keys at the same location.
        head, _, rest = text.partition("://")
        bucket, *folders = rest.split("/")
        address = f"{head.lower()}://{'/'.join([bucket, *filter(None, folders)])}"
        return Target("url", address, (endpoint or "").rstrip("/"), region or "")
    if endpoint or region:
        raise BadInput("a directory has neither an endpoint nor a region", hint=f"give a URL: {_URL_HOW}")
    if isinstance(text, str) and _ONE_SLASH.match(text):
        raise BadInput(f"{text!r} is neither a URL nor a directory", hint=f"write {_URL_HOW}, with two slashes")
    return Target("directory", str(expanded(text).absolute()))


def _hub_target(text: str, *, is_other_place: bool) -> Target:
    """Parse ``hf://buckets/NAMESPACE/NAME/PREFIX``, a bucket of Hugging Face, to be accessed through its S3 gateway."""
    if is_other_place:
        hint = "for another gateway: s3://NAME/PREFIX, and https://HOST/NAMESPACE as the endpoint"
        raise BadInput("hf:// has its own endpoint and region", hint=hint)
    namespace, _, rest = text[len(_HUB) :].partition("/") if text.lower().startswith(_HUB) else ("", "", "")
    name, *folders = [*filter(None, rest.split("/"))] or [""]
    if _BUCKET.match(namespace) is None or not name:
        raise BadInput(f"a bucket of Hugging Face is hf://buckets/NAMESPACE/NAME/PREFIX, got {text!r}")
    return Target("url", f"s3://{'/'.join([name, *folders])}", f"{HUB_ENDPOINT}/{namespace}", "us-east-1")


def _check_url(address: str) -> None:
    # This check precedes every message that contains the address, because the address may contain a password.
    if "@" in address or "?" in address or "#" in address:
        raise BadInput("the address of a remote has no user, password, query or fragment", hint=_NO_SECRETS)
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES:
        hint = "for services other than AWS: s3://BUCKET/PREFIX, and the URL of the service as the endpoint"
        is_service = parts.scheme in ("http", "https")
        raise BadInput(f"a remote is a directory or {_URL_HOW}, got {address!r}", hint=hint if is_service else "")
    if _BUCKET.match(parts.netloc) is None:
        raise BadInput(f"{address!r} does not name a bucket", hint=f"for example {_URL_HOW}")
    segments = [part for part in parts.path.strip("/").split("/") if part]
    if any(_SEGMENT.match(part) is None or part in (".", "..") for part in segments):
        raise BadInput(f"a prefix has the characters A-Z a-z 0-9 . _ = + - between slashes, got {address!r}")


def check_endpoint(endpoint: str, name: str = "an endpoint") -> None:
    """Raise `BadInput` unless this is the URL of a service without credentials. Messages refer to it as `name`."""
    if "@" in endpoint or "?" in endpoint or "#" in endpoint:
        raise BadInput(f"{name} has no user, password, query or fragment", hint=_NO_SECRETS)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadInput(f"{name} must be a URL such as https://s3.example.org, got {endpoint!r}")
