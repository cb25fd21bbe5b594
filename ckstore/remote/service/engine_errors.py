"""What the engine raises becomes errors of ckstore, without what must not be shown."""

from __future__ import annotations

import os
import re

from ckstore.errors import RemoteDenied, RemoteError, RemoteFull, RemoteUnavailable
from ckstore.model.words import printable
from ckstore.remote.service.target import Target

_SHOWN = 300
# The engine puts the whole body of an answer into its message, and a service may send any number of bytes.
_LOOKED_AT = 8192
# The engine adds a dump of its own structures below its message, and the body of the answer before it.
_AFTER = re.compile(r"(?:Debug source:|<\?xml|<!doctype|<html).*", re.DOTALL | re.IGNORECASE)
# Signatures and shared access tokens travel in the query of a URL, user and password before its host.
_QUERY = re.compile(r"\?[^\s\"')]*")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
# Before and between what the service said: what was asked for is said by ckstore, and times differ with each try.
_ECHO = re.compile(
    r"The operation lacked the necessary privileges to complete for path \S+: |Object at location \S+ not found: "
    r"|Generic \S+ error: |(?<= - )Server returned non-2xx status code: | in [0-9.]+(?:ns|µs|ms|s)\b"
    r"|, after [0-9]+ retries, max_retries: [0-9]+, retry_timeout: [0-9a-z.]+"
)
_STATUS = re.compile(r"\b(?:status code|HTTP error)?:? ?([45][0-9]{2}) [A-Z]")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_SECRET_VARIABLE = re.compile(
    r"(?:AWS|AZURE|GOOGLE|GCP|GCS).*(?:SECRET|TOKEN|KEY|PASSWORD|SAS|SIGNATURE|CREDENTIAL)|.*SECRET_ACCESS_KEY",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 8
# Answers that the same request gets again.
_FINAL = ("400", "404", "405", "411", "413", "414", "416", "501")
# As services answer a write when a quota or their disks are used up; most do so with status 403.
_FULL_CODES = (
    "QuotaExceeded",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
    "InsufficientStorage",
    "QuotaLimit",
)
_FULL_HINT = "raise its quota, or free space there: ckstore remote prune NAME, which writes a little first"
_CREDENTIALS_HINT = "check the credentials of this process: environment, profile or role"


def scrubbed(text: str) -> str:
    """Return a text of the engine as far as it may be shown: one line, without queries, users and secrets."""
    text = text[:_LOOKED_AT]
    code = _CODE.search(text)
    text = _USER.sub("", _QUERY.sub("", _AFTER.sub("", text)))
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_VARIABLE.match(name):
            text = text.replace(value, "***")
    text = printable(_ECHO.sub("", " ".join(text.split())))
    if code is not None and code[1] not in text:
        text = f"{text} ({code[1]})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_missing(error: BaseException | None) -> bool:
    """Whether an error of the engine says that there is no such object."""
    return isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError"


def has_lost_condition(error: BaseException | None) -> bool:
    """Whether an error of the engine says that the condition of a write did not hold; that may be a late echo."""
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def translated(error: BaseException | None, what: str, target: Target) -> RemoteError:
    """Return what to raise for an error of the engine, not to be chained: its text and causes may show secrets."""
    if isinstance(error, RemoteError):
        return error
    text, name = str(error)[:_LOOKED_AT], type(error).__name__
    said = scrubbed(text)
    where = f"{what} at {target}"
    status = _STATUS.search(text)
    number = status[1] if status else ""
    code = _CODE.search(text)
    if (code is not None and code[1] in _FULL_CODES) or number == "507":
        return RemoteFull(f"{where} was refused, since the bucket is full: {said}", hint=_FULL_HINT)
    if name in ("PermissionDeniedError", "UnauthenticatedError") or number in ("401", "403"):
        return RemoteDenied(f"{where} was refused: {said}", hint=_CREDENTIALS_HINT)
    if is_missing(error):
        return RemoteError(f"{where} failed, since it does not exist: {said}", hint="check that the bucket exists")
    if "object with invalid path" in text:  # the engine ends a listing at such a name
        hint = "another program has put it there, and no remote has such a name: remove that object"
        return RemoteError(f"{where} failed: {said}", hint=hint)
    if name in ("NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError") or number in _FINAL:
        return RemoteError(f"{where} failed: {said}")
    if name == "TypeError" or isinstance(error, ValueError):
        return RemoteError(f"{where} failed: {said}", hint="check the address of the remote")
    hint = "check the network and the address; the same command may succeed later"
    return RemoteUnavailable(f"{where} failed: {said}", hint=hint)
