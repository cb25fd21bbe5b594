"""Translates errors of the engine to errors of ckstore, without secrets."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

from ckstore.errors import RemoteDenied, RemoteError, RemoteFull, RemoteUnavailable
from ckstore.model.words import printable
from ckstore.remote.service.target import Target

_SHOWN = 300
# The number of characters of a message that are inspected. The engine includes the whole body of a response in its
# message, and a service may send any number of bytes.
_LOOKED_AT = 8192
# The part of a message that is removed. The engine appends a dump of its structures, and inserts the response body.
_AFTER = re.compile(r"(?:Debug source:|<\?xml|<!doctype|<html).*", re.DOTALL | re.IGNORECASE)
# Queries of URLs contain signatures and shared access tokens. A user and a password precede the host.
_QUERY = re.compile(r"\?[^\s\"')]*")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
# The phrases of the engine that are removed, because ckstore names the request itself, and durations vary.
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
# HTTP statuses that a repeated request would receive again.
_FINAL = ("400", "404", "405", "411", "413", "414", "416", "501")
# The codes with which services refuse a write because a quota is exhausted or a disk is full, most with status 403.
_FULL_CODES = (
    "QuotaExceeded",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
    "InsufficientStorage",
    "QuotaLimit",
)
_FULL_HINT = "raise its quota, or free space with ckstore remote prune NAME, which first needs a little space"
# The codes with which S3 refuses credentials with status 400.
_DENIED_CODES = (
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidIdentityToken",
    "InvalidToken",
    "TokenRefreshRequired",
)
_ROLES = "://169.254.169.254/"
"""The address from which machines of AWS and some other providers get the credentials of their role."""
_FILES = {
    "s3": ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    "az": ("AZURE_FEDERATED_TOKEN_FILE",),
}
"""Scheme -> environment variables that name credential files."""


def credentials_hint(target: Target) -> str:
    """Return a hint after a refusal, which names the variables and files from which the credentials may come."""
    files = [f"{name}={os.environ[name]}" for name in _FILES.get(target.scheme, ()) if os.environ.get(name)]
    unread = ""
    if target.scheme == "s3" and os.environ.get("AWS_ACCESS_KEY_ID"):
        files = ["AWS_ACCESS_KEY_ID"]
    elif target.scheme == "s3" and has_aws_folder() and find_spec("boto3") is None:
        unread = "; ~/.aws is not read, since boto3 is not installed: pip install boto3"
    where = printable(f"in {' and '.join(files)}") if files else "in the environment, the profile or the role"
    return f"check the credentials of this process {where}; they are read again after each refusal{unread}"


def has_aws_folder() -> bool:
    """Whether this user has the folder in which the tools of AWS keep credentials."""
    return os.path.exists(os.path.expanduser("~/.aws"))  # noqa: PTH110, PTH111


def scrubbed(text: str) -> str:
    """Return a text of the engine in a form that is safe to show: one line, without queries, users and secrets."""
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
    """Whether an error of the engine means that the object does not exist."""
    return isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError"


def has_lost_condition(error: BaseException | None) -> bool:
    """Whether an error of the engine means that the condition of a write failed. A retry can also cause this error."""
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def translated(error: BaseException | None, what: str, target: Target) -> RemoteError:
    """Return the error to raise for an error of the engine. Raise it unchained, as the original may contain secrets."""
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
    is_denied = name in ("PermissionDeniedError", "UnauthenticatedError") or number in ("401", "403") or _ROLES in text
    if is_denied or (code is not None and code[1] in _DENIED_CODES):
        # If the engine finds no credentials, it requests those of the machine's role.
        denied = "was not sent without credentials" if _ROLES in text else "was refused"
        return RemoteDenied(f"{where} {denied}: {said}", hint=credentials_hint(target))
    if is_missing(error):
        return RemoteError(f"{where} failed, since it does not exist: {said}", hint="check that the bucket exists")
    if "object with invalid path" in text:  # the engine stops a listing at such a name
        hint = "another program wrote this object, whose name is invalid on a remote: delete it"
        return RemoteError(f"{where} failed: {said}", hint=hint)
    if name in ("NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError") or number in _FINAL:
        return RemoteError(f"{where} failed: {said}")
    if name == "TypeError" or isinstance(error, ValueError):
        return RemoteError(f"{where} failed: {said}", hint="check the address of the remote")
    hint = "check the network and the address; the same command may succeed later"
    return RemoteUnavailable(f"{where} failed: {said}", hint=hint)
