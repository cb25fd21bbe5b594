"""`Objects` on object storage, by obstore (the extra ``ckstore[remote]``); see docs/adr/0019-remotes.md.

Nothing is verified in this module; callers compare digests. Every error is translated and never chained, since the
texts of the engine may contain signatures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ckstore.errors import BadInput, MissingExtra, RemoteError, RemoteUnavailable
from ckstore.remote.objects import ObjectEntry
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine_calls import CallThreads, check_process
from ckstore.remote.service.engine_errors import has_lost_condition, is_missing, scrubbed, translated
from ckstore.remote.service.target import Target, check_endpoint

T = TypeVar("T")
# For the whole request with its body: a blob of 2 GiB at 4 MB/s. A stalled connection is given up far sooner.
_CLIENT_OPTIONS = {"timeout": "10m", "read_timeout": "30s", "connect_timeout": "10s"}
# The engine waits for a response from the first byte of a body: a `read_timeout` would limit the whole upload. Half an
# hour is enough for 256 MiB, the largest body, at 150 kB/s.
_UPLOAD_S = 1800
_UPLOAD_OPTIONS = {"timeout": f"{_UPLOAD_S}s", "connect_timeout": "10s"}
_UPLOAD_BYTES = 2**18
_RETRIES = 5
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_RETRY_S = 60
# The engine sends creates, updates and deletes once: its own retries would hide whether a response was lost.
_TRIES = 6
_FIRST_PAUSE_S = 0.1
# Up to this size, one request: a multipart upload has neither conditions nor one checksum. Services accept 5 GiB.
_MULTIPART_BYTES = 256 * 2**20
_PART_BYTES = 64 * 2**20
_PARTS_AT_ONCE = 2
_READ_BYTES = 2**20
_BATCH = 1000  # the limit of S3 for one delete request
MOST_LISTED = 10_000_000
"""The limit of objects below one prefix. As blobs of 32 MiB these are 320 TB."""
# Published for every installation of Azure's emulator; the key protects nothing else.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_AZURE_CREDENTIALS = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
)
"""Environment variables with which a user chooses the credentials for Azure."""

_memory: dict[str, Any] = {}
"""The objects of ``memory://NAME`` of this process, for tests."""


class ServiceObjects:
    """The objects of a target; see `Objects`. Threads may share it; a forked child must not use it."""

    def __init__(self, target: Target, abilities: Abilities | None = None) -> None:
        check_process()
        self._target = target
        self._store, self._once = _stores(target, _CLIENT_OPTIONS)
        self._uploads: tuple[Any, Any] | None = None  # the same for large bodies, created for the first one
        self._ranges = abilities is None or abilities.ranges
        self._unquoted = abilities is not None and abilities.cas == "unquoted"
        self._workers = CallThreads()

    def __repr__(self) -> str:
        return f"<objects of {self._target}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickles of the engine would contain the keys of the account.
        raise RemoteError(f"objects of {self._target} cannot be pickled", hint="pickle and open the target")

    def close(self) -> None:
        """End the waits of all threads; see `Objects`."""
        self._workers.stop()

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Return a small object; see `Objects`."""
        import obstore

        def read() -> bytes:
            found = obstore.get(self._store, self._path(key))
            size = found.meta["size"]
            if size > max_bytes:
                raise RemoteError(f"{key} at {self._target} has {size} bytes, more than {max_bytes}")
            parts, left = [], size
            # Counted while reading: a chunked body may be longer than the stated length.
            for chunk in found.stream(_READ_BYTES):
                parts.append(chunk)
                left -= len(memoryview(chunk))
                if left < 0:
                    raise RemoteError(f"{key} at {self._target} sends more than the announced {size} bytes")
            return b"".join(parts)

        return self._unless_missing(read, f"reading {key}")

    def read_into(self, key: str, offset: int, into: memoryview) -> bool:
        """Fill `into` from an object; see `Objects`."""
        import obstore

        into = into.cast("B")
        if not len(into):
            return self.head(key) is not None
        skip = 0 if self._ranges else offset
        options: Any = {"range": (offset, offset + len(into))} if self._ranges else {}

        def begin() -> Iterator[Any]:
            return iter(obstore.get(self._store, self._path(key), options=options).stream(_READ_BYTES))

        stream = self._unless_missing(begin, f"reading {key}")
        if stream is None:
            return False
        filled = 0
        # This thread copies chunk by chunk: an abandoned worker must not write into the caller's memory.
        while filled < len(into):
            chunk = self._call(lambda: next(stream, None), f"reading {key}")
            if chunk is None:
                break
            part = memoryview(chunk).cast("B")
            part, skip = part[skip:], max(0, skip - len(part))
            part = part[: len(into) - filled]
            into[filled : filled + len(part)] = part
            filled += len(part)
        if filled < len(into):
            msg = f"{key} at {self._target} ends {len(into) - filled} bytes before the end of the range to read"
            raise RemoteError(msg)
        return True

    def send(self, key: str, data: bytes | memoryview) -> str:
        """Write an object; see `Objects`."""
        result = self._write(key, data)
        # At some services, the response to a multipart upload has no tag.
        return result.get("e_tag") or self._listed(key, data, result).tag

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        """Write an object and return its entry; see `Objects`."""
        return self._listed(key, data, self._write(key, data))

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create an object; see `Objects`."""
        what, once = f"creating {key}", self._writing(data)[1]

        def attempt() -> bool | None:
            _, error = self._try(lambda: self._send(once, key, data, "create"))
            if error is None:
                return True
            # The response to this or an earlier attempt may be lost, and a refusal may be due to our own success.
            failure = None if has_lost_condition(error) else translated(error, what, self._target)
            if failure is not None and not isinstance(failure, RemoteUnavailable):
                raise failure
            found = self._has_bytes(key, data)
            if found is None and failure is not None:
                raise failure
            return found

        return self._first_result(attempt, what)

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        """Replace one version of an object; see `Objects`. If it already has these bytes, it counts as written."""
        what, once = f"updating {key}", self._writing(data)[1]

        def attempt() -> str | bool:
            condition = self._condition(key, expected)
            if condition is None:
                return False
            result, error = self._try(lambda: self._send(once, key, data, condition))
            if result is not None:
                if result.get("e_tag"):
                    return str(result["e_tag"])
                # Without a tag in the response, the current one counts only if no other client has written since.
                found = self.head(key)
                return found.tag if found is not None and self._has_bytes(key, data) else ""
            lost = has_lost_condition(error) or is_missing(error)
            failure = None if lost else translated(error, what, self._target)
            if failure is not None and not isinstance(failure, RemoteUnavailable):
                raise failure
            now = self.head(key)
            if now is not None and self._has_bytes(key, data):
                return now.tag  # our own write, whose response was lost
            if failure is not None and now is not None and now.tag == expected:
                raise failure  # still the expected version: the write did not arrive
            return False

        found = self._first_result(attempt, what)
        return found if isinstance(found, str) else None

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield objects in the order of their keys; see `Objects`."""
        import obstore

        # The engine lists by whole path components; the rest of the prefix is compared below.
        top = self._target.prefix
        folder, _, rest = self._path(prefix).rpartition("/")
        offset = self._path(prefix) if rest else None
        what = f"listing {prefix or 'all'}"
        stream = self._call(
            lambda: iter(obstore.list(self._store, prefix=folder or None, offset=offset, chunk_size=_BATCH)), what
        )
        count = 0
        while (found := self._call(lambda: next(stream, None), what)) is not None:
            count += len(found)
            if count > MOST_LISTED:  # otherwise a service that invents names would be read forever
                raise RemoteError(f"{what} at {self._target} returned more than {MOST_LISTED:,} objects")
            for meta in found:
                key = meta["path"].removeprefix(top)
                if key.startswith(prefix) and meta["path"].startswith(top):
                    yield _entry_of(key, meta)
                elif rest and key > prefix:
                    return  # keys are sorted, so no later one begins with the prefix

    def head(self, key: str) -> ObjectEntry | None:
        """Return the entry of an object; see `Objects`."""
        import obstore

        meta = self._unless_missing(lambda: obstore.head(self._store, self._path(key)), f"looking at {key}")
        return None if meta is None else _entry_of(key, meta)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, each by one request that is not retried; see `Objects`."""
        import obstore

        paths = [self._path(key) for key in keys]
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            what = f"removing {len(batch)} objects"
            _, error = self._try(partial(obstore.delete, self._once, batch))
            if is_missing(error):  # the service stops at the first missing one of a batch (Azure)
                for path in batch:
                    self._unless_missing(partial(obstore.delete, self._once, path), what)
            elif error is not None:
                raise translated(error, what, self._target)

    def _path(self, key: str) -> str:
        return self._target.prefix + key

    def _writing(self, data: bytes | memoryview) -> tuple[Any, Any]:
        """Return the clients for a body: one that retries requests by itself, and one that sends each once."""
        if memoryview(data).nbytes <= _UPLOAD_BYTES:
            return self._store, self._once
        if self._uploads is None:
            self._uploads = _stores(self._target, _UPLOAD_OPTIONS)
        return self._uploads

    def _write(self, key: str, data: bytes | memoryview) -> Mapping[str, Any]:
        store, _ = self._writing(data)
        parts = memoryview(data).nbytes // _PART_BYTES if memoryview(data).nbytes > _MULTIPART_BYTES else 0
        # One call sends all parts of a blob, and each part may take as long as a request.
        return self._call(lambda: self._send(store, key, data, None), f"writing {key}", most_s=parts * _UPLOAD_S)

    def _send(self, store: Any, key: str, data: bytes | memoryview, mode: Any) -> Mapping[str, Any]:
        import obstore

        view = memoryview(data).cast("B")  # the engine only accepts bytes
        large = mode is None and len(view) > _MULTIPART_BYTES
        return obstore.put(
            store,
            self._path(key),
            view,
            mode=mode,
            use_multipart=large,
            chunk_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    def _listed(self, key: str, data: bytes | memoryview, result: Mapping[str, Any]) -> ObjectEntry:
        """Return the entry of an object that was just written, with the server's time and the tag of this write."""
        found = self.head(key)
        if found is None:
            msg = f"{key} at {self._target} is missing just after it was written"
            raise RemoteUnavailable(msg, hint="another client deleted it, or the service does not show writes at once")
        # The tag of the response, if it has one: otherwise a later write of another client could pass for ours, and a
        # compare-and-swap would then overwrite it.
        tag = result.get("e_tag") or found.tag
        return found._replace(tag=tag, nbytes=memoryview(data).nbytes)

    def _condition(self, key: str, expected: str) -> dict[str, str] | None:
        if not expected:
            return None
        if self._target.scheme == "gs":  # by generation, which listings do not contain
            import obstore

            meta = self._unless_missing(lambda: obstore.head(self._store, self._path(key)), f"looking at {key}")
            if meta is None or meta["e_tag"] != expected:
                return None
            return {"e_tag": expected, "version": str(meta["version"])}
        # Without "version": None, which raises a TypeError. Ceph only accepts the tag without quotes.
        return {"e_tag": expected.strip('"') if self._unquoted else expected}

    def _has_bytes(self, key: str, data: bytes | memoryview) -> bool | None:
        """Return whether an object has these bytes; None if it is missing."""
        import obstore

        view = memoryview(data).cast("B")

        def compare() -> bool:
            found = obstore.get(self._store, self._path(key))
            at = len(view) if found.meta["size"] != len(view) else 0
            for chunk in found.stream(_READ_BYTES) if not at else ():
                part = memoryview(chunk).cast("B")
                if view[at : at + len(part)] != part:
                    return False
                at += len(part)
            return found.meta["size"] == len(view) == at

        return self._unless_missing(compare, f"reading {key}")

    def _first_result(self, attempt: Callable[[], T | None], what: str) -> T:
        """Repeat `attempt` until it returns a result, and return that."""
        pause_s, failure = _FIRST_PAUSE_S, RemoteUnavailable(f"{what} at {self._target} was refused {_TRIES} times")
        for left in reversed(range(_TRIES)):
            try:
                found = attempt()
            except RemoteUnavailable as error:
                failure = error
            else:
                if found is not None:
                    return found
            if not left or self._workers.stopped:
                break
            time.sleep(pause_s)
            pause_s *= 2
        raise failure

    def _unless_missing(self, function: Callable[[], T], what: str) -> T | None:
        result, error = self._try(function)
        if error is not None and not is_missing(error):
            raise translated(error, what, self._target)
        return result

    def _call(self, function: Callable[[], T], what: str, *, most_s: float = 0.0) -> T:
        result, error = self._try(function, most_s)
        if error is not None:
            raise translated(error, what, self._target)
        return result  # type: ignore[return-value]  # of a call without an error

    def _try(self, function: Callable[[], T], most_s: float = 0.0) -> tuple[T | None, Exception | None]:
        """Make a call of the engine in a worker; return its result or its error."""
        # Returned and not raised, since an error raised while another one is handled would carry and show that one.
        try:
            return self._workers.call(function, most_s), None
        except Exception as error:  # noqa: BLE001 - handed to the caller, who translates it
            return None, error


def _entry_of(key: str, meta: Mapping[str, Any]) -> ObjectEntry:
    return ObjectEntry(key, meta["size"], meta["last_modified"], meta["e_tag"] or "")


def _stores(target: Target, options: Mapping[str, str]) -> tuple[Any, Any]:
    """Return two clients of a target: one that retries requests by itself, and one that sends each once."""
    if target.kind != "url":
        raise BadInput(f"{target} is a directory, not object storage")
    try:
        import obstore.store  # noqa: F401 - whether it is installed
    except ImportError as error:
        msg = f"{target} needs the package obstore, which is not installed"
        raise MissingExtra(msg, hint="pip install 'ckstore[remote]'") from error
    if target.scheme == "memory":
        from obstore.store import MemoryStore

        store = _memory.setdefault(target.bucket, MemoryStore())
        return store, store
    failure: RemoteError | None = None
    try:
        return _client(target, _RETRIES, options), _client(target, 0, options)
    except Exception as error:  # noqa: BLE001 - the engine's errors have no common base for wrong settings
        hint = "check the address, and the environment variables for this service"
        failure = RemoteError(f"{target} cannot be used: {scrubbed(str(error))}", hint=hint)
    raise failure  # outside the handler, so that the engine's error is not shown with it


def _client(target: Target, retries: int, limits: Mapping[str, str]) -> Any:
    from datetime import timedelta

    from obstore import store as services

    options: Any = {**limits, "allow_http": target.endpoint.startswith("http://")}
    if not target.endpoint and target.scheme == "s3":
        endpoints = {name: os.environ[name] for name in _ENDPOINTS if os.environ.get(name)}
        for name, value in endpoints.items():
            check_endpoint(value, name)
        # An endpoint of the environment may be on loopback; the user who set it decides about TLS.
        options["allow_http"] = any(value.startswith("http://") for value in endpoints.values())
    common: Any = {
        "client_options": options,
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=_RETRY_S)},
    }
    if target.scheme == "s3":
        return services.S3Store(target.bucket, config=_s3_config(target), **_s3_credentials(), **common)
    if target.scheme == "gs":
        return services.GCSStore(target.bucket, **common)
    return services.AzureStore(target.bucket, config=_azure_config(target), **common)


def _s3_config(target: Target) -> Any:
    config: dict[str, Any] = {}
    endpoint = target.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "")
    if endpoint:
        config["endpoint"] = endpoint
    region = target.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        config["region"] = region
    elif endpoint:
        config["region"] = "us-east-1"  # services other than AWS expect this in a signature
    return config


def _s3_credentials() -> dict[str, Any]:
    """Return the provider for profiles and single sign-on, if it is installed and configured."""
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}
    profile = os.environ.get("AWS_PROFILE") or os.path.exists(os.path.expanduser("~/.aws"))  # noqa: PTH110, PTH111
    if not profile:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    return {"credential_provider": Boto3CredentialProvider()}


def _azure_config(target: Target) -> Any:
    endpoint = target.endpoint
    if not endpoint:
        return {}
    # Set explicitly, since the environment may enable the emulator, for which the engine uses a fixed port.
    config = {"endpoint": endpoint, "use_emulator": "false"}
    parts = urlsplit(endpoint)
    account = parts.path.strip("/")
    if "/" in account:  # the path of a proxy
        account = ""
    elif not account and parts.hostname in _LOOPBACK:  # an emulator, which has the account in the path
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", _EMULATOR_ACCOUNT)
        config["endpoint"] = f"{endpoint.rstrip('/')}/{account}"
    if not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") and account:
        config["account_name"] = account
    if account == _EMULATOR_ACCOUNT and not any(os.environ.get(name) for name in _AZURE_CREDENTIALS):
        config["account_key"] = _EMULATOR_KEY
    return config
