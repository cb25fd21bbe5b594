"""Implements `Objects` for object storage with obstore (the extra ``ckstore[remote]``). See docs/adr/0019-remotes.md.

This module verifies nothing, because callers compare digests. Every error is translated and never chained, because the
texts of the engine may contain signatures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ckstore.errors import RemoteDenied, RemoteError, RemoteUnavailable
from ckstore.remote.objects import ObjectEntry
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine_calls import CallThreads, check_process
from ckstore.remote.service.engine_clients import UPLOAD_S, Clients
from ckstore.remote.service.engine_errors import has_lost_condition, is_missing, translated
from ckstore.remote.service.target import Target

T = TypeVar("T")
_UPLOAD_BYTES = 2**18
# The engine sends creates, updates and deletes once, because its own retries would hide whether a response was lost.
# Creates and updates are attempted this many times here.
_TRIES = 6
_FIRST_PAUSE_S = 0.1
# Up to this size, an object is sent in one request, because a multipart upload has neither conditions nor one checksum
# of the whole object. Services accept requests of up to 5 GiB.
_MULTIPART_BYTES = 256 * 2**20
_PART_BYTES = 64 * 2**20
_PARTS_AT_ONCE = 2
_READ_BYTES = 2**20
_BATCH = 1000  # the limit of S3 for one delete request
MOST_LISTED = 10_000_000
"""The maximum number of objects below one prefix. If all are blobs of 32 MiB, they have about 300 TiB."""


class ServiceObjects:
    """The objects of a target; see `Objects`. Threads may share an instance, but a forked child must not use it."""

    def __init__(self, target: Target, abilities: Abilities | None = None) -> None:
        check_process()
        self._target = target
        self._clients = Clients(target)
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
            found = obstore.get(self._clients.store, self._path(key))
            size = found.meta["size"]
            if size > max_bytes:
                raise RemoteError(f"{key} at {self._target} has {size} bytes, more than {max_bytes}")
            parts, left = [], size
            # The bytes are counted during the read, because a chunked body may be longer than the stated length.
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
            return iter(obstore.get(self._clients.store, self._path(key), options=options).stream(_READ_BYTES))

        stream = self._unless_missing(begin, f"reading {key}")
        if stream is None:
            return False
        filled = 0
        # This thread copies the chunks, because an abandoned worker must not write into the caller's memory.
        while filled < len(into):
            chunk, error = self._try_once(lambda: next(stream, None))
            if error is not None:
                raise translated(error, f"reading {key}", self._target)
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
        # On some services, the response to a multipart upload has no tag.
        return result.get("e_tag") or self._listed(key, data, result).tag

    def put(self, key: str, data: bytes | memoryview) -> ObjectEntry:
        """Write an object and return its entry; see `Objects`."""
        return self._listed(key, data, self._write(key, data))

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create an object; see `Objects`."""
        what = f"creating {key}"

        def attempt() -> bool | None:
            _, error = self._try(lambda: self._send(self._writing(data)[1], key, data, "create"))
            if error is None:
                return True
            # The object may still have been created, because the response to this or an earlier attempt may be lost.
            failure = None if has_lost_condition(error) else translated(error, what, self._target)
            if failure is not None and not isinstance(failure, RemoteUnavailable):
                raise failure
            found = self._has_bytes(key, data)
            if found is None and failure is not None:
                raise failure
            return found

        return self._first_result(attempt, what)

    def update(self, key: str, data: bytes | memoryview, expected: str) -> str | None:
        """Replace one version of an object; see `Objects`. An object with these bytes already counts as replaced."""
        what = f"updating {key}"

        def attempt() -> str | bool:
            condition = self._condition(key, expected)
            if condition is None:
                return False
            result, error = self._try(lambda: self._send(self._writing(data)[1], key, data, condition))
            if result is not None:
                if result.get("e_tag"):
                    return str(result["e_tag"])
                # If the response has no tag, the current tag is used only if no other client has written since then.
                found = self.head(key)
                return found.tag if found is not None and self._has_bytes(key, data) else ""
            lost = has_lost_condition(error) or is_missing(error)
            failure = None if lost else translated(error, what, self._target)
            if failure is not None and not isinstance(failure, RemoteUnavailable):
                raise failure
            now = self.head(key)
            if now is not None and self._has_bytes(key, data):
                return now.tag  # this was our own write, and its response was lost
            if failure is not None and now is not None and now.tag == expected:
                raise failure  # the object still has the expected version, so the write did not arrive
            return False

        found = self._first_result(attempt, what)
        return found if isinstance(found, str) else None

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield objects in the order of their keys; see `Objects`."""
        # The engine lists by whole path components. The rest of the prefix is compared below.
        top = self._target.prefix
        folder, _, rest = self._path(prefix).rpartition("/")
        what = f"listing {prefix or 'all'}"
        count = 0
        for found in self._pages(folder or None, self._path(prefix) if rest else None, what):
            count += len(found)
            if count > MOST_LISTED:  # otherwise the listing of a service that invents names would never end
                raise RemoteError(f"{what} at {self._target} returned more than {MOST_LISTED:,} objects")
            for meta in found:
                key = meta["path"].removeprefix(top)
                if key.startswith(prefix) and meta["path"].startswith(top):
                    yield _entry_of(key, meta)
                elif rest and key > prefix:
                    return  # keys are sorted, so no later key begins with the prefix

    def _pages(self, folder: str | None, offset: str | None, what: str) -> Iterator[Any]:
        """Yield the pages of a listing. After a refusal, continue after the last page with renewed clients."""
        import obstore

        stream, is_renewed = None, False
        while True:
            seen = self._clients.number
            if stream is None:
                stream = iter(obstore.list(self._clients.store, prefix=folder, offset=offset, chunk_size=_BATCH))
            found, error = self._try_once(partial(next, stream, None))
            # After an error, the stream is not used again, because it would end like the stream of a complete listing.
            if error is not None and not is_renewed and self._is_renewed_after(error, seen):
                stream, is_renewed = None, True
                continue
            if error is not None:
                raise translated(error, what, self._target)
            if found is None:
                return
            is_renewed = False
            if len(found):
                offset = found[-1]["path"]
            yield found

    def head(self, key: str) -> ObjectEntry | None:
        """Return the entry of an object; see `Objects`."""
        import obstore

        meta = self._unless_missing(lambda: obstore.head(self._clients.store, self._path(key)), f"looking at {key}")
        return None if meta is None else _entry_of(key, meta)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in batches. A request is retried only after a refusal; see `Objects`."""
        paths = [self._path(key) for key in keys]
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            what = f"removing {len(batch)} objects"
            _, error = self._try(partial(self._delete, batch))
            if is_missing(error):  # Azure stops at the first missing object of a batch
                for path in batch:
                    self._unless_missing(partial(self._delete, path), what)
            elif error is not None:
                raise translated(error, what, self._target)

    def _delete(self, paths: Sequence[str] | str) -> None:
        import obstore

        obstore.delete(self._clients.once, paths)

    def _path(self, key: str) -> str:
        return self._target.prefix + key

    def _writing(self, data: bytes | memoryview) -> tuple[Any, Any]:
        """Return two clients for a body: one retries requests by itself, and the other sends each request once."""
        if memoryview(data).nbytes <= _UPLOAD_BYTES:
            return self._clients.store, self._clients.once
        return self._clients.of_uploads()

    def _write(self, key: str, data: bytes | memoryview) -> Mapping[str, Any]:
        parts = memoryview(data).nbytes // _PART_BYTES if memoryview(data).nbytes > _MULTIPART_BYTES else 0
        # One call sends all parts of an object, and each part may take as long as a request.
        most_s = float(parts * UPLOAD_S)
        return self._call(lambda: self._send(self._writing(data)[0], key, data, None), f"writing {key}", most_s=most_s)

    def _send(self, store: Any, key: str, data: bytes | memoryview, mode: Any) -> Mapping[str, Any]:
        import obstore

        view = memoryview(data).cast("B")  # the engine accepts only views of bytes
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
        # A tag in the response takes precedence. The listed tag may be that of a later write of another client, which a
        # compare-and-swap with this tag would overwrite.
        tag = result.get("e_tag") or found.tag
        return found._replace(tag=tag, nbytes=memoryview(data).nbytes)

    def _condition(self, key: str, expected: str) -> dict[str, str] | None:
        if not expected:
            return None
        if self._target.scheme == "gs":  # this service compares the generation, which listings do not contain
            import obstore

            meta = self._unless_missing(lambda: obstore.head(self._clients.store, self._path(key)), f"looking at {key}")
            if meta is None or meta["e_tag"] != expected:
                return None
            return {"e_tag": expected, "version": str(meta["version"])}
        # The condition omits "version", because a None in it would raise a TypeError. Ceph accepts only tags without
        # quotes.
        return {"e_tag": expected.strip('"') if self._unquoted else expected}

    def _has_bytes(self, key: str, data: bytes | memoryview) -> bool | None:
        """Return whether an object has these bytes, or None if it is missing."""
        import obstore

        view = memoryview(data).cast("B")

        def compare() -> bool:
            found = obstore.get(self._clients.store, self._path(key))
            at = len(view) if found.meta["size"] != len(view) else 0
            for chunk in found.stream(_READ_BYTES) if not at else ():
                part = memoryview(chunk).cast("B")
                if view[at : at + len(part)] != part:
                    return False
                at += len(part)
            return found.meta["size"] == len(view) == at

        return self._unless_missing(compare, f"reading {key}")

    def _first_result(self, attempt: Callable[[], T | None], what: str) -> T:
        """Call `attempt` up to `_TRIES` times until it returns a result, and return the result."""
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
        return result  # type: ignore[return-value]  # a call without an error has a result

    def _try(self, function: Callable[[], T], most_s: float = 0.0) -> tuple[T | None, Exception | None]:
        """Call the engine in a worker, and return the result or the error.

        If the service refuses the request, the call is repeated once with clients that have read the credentials again.
        """
        seen = self._clients.number
        result, error = self._try_once(function, most_s)
        if error is not None and self._is_renewed_after(error, seen):
            return self._try_once(function, most_s)
        return result, error

    def _is_renewed_after(self, error: Exception, seen: int) -> bool:
        """Whether the clients with the number `seen` were refused, and a retry with other clients makes sense."""
        if not isinstance(translated(error, "", self._target), RemoteDenied):
            return False
        # This runs in a worker, since it may wait for a service or a program that provides credentials.
        return self._workers.call(partial(self._clients.renew, seen))

    def _try_once(self, function: Callable[[], T], most_s: float = 0.0) -> tuple[T | None, Exception | None]:
        # The error is returned and not raised, because an error that is raised while another is handled also shows the
        # other one.
        try:
            return self._workers.call(function, most_s), None
        except Exception as error:  # noqa: BLE001 - handed to the caller, who translates it
            return None, error


def _entry_of(key: str, meta: Mapping[str, Any]) -> ObjectEntry:
    return ObjectEntry(key, meta["size"], meta["last_modified"], meta["e_tag"] or "")
