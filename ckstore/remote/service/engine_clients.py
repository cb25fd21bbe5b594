"""Creates clients of the engine from the address of a target, the environment and credential files.

Credentials change while a process runs: a file is rewritten, or a token expires. The engine keeps the credentials that
it has read. Therefore all clients are created again after a refusal.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ckstore.errors import BadInput, MissingExtra, RemoteDenied, RemoteError
from ckstore.model.words import printable
from ckstore.remote.service.engine_errors import credentials_hint, has_aws_folder, scrubbed
from ckstore.remote.service.target import Target, check_endpoint

# `timeout` limits the whole request with its body, for example a blob of 2 GiB at 4 MB/s. The other timeouts end a
# stalled connection much sooner.
_CLIENT_OPTIONS = {"timeout": "10m", "read_timeout": "30s", "connect_timeout": "10s"}
# The engine begins to wait for the response at the first byte of the body, so a `read_timeout` would limit the whole
# upload. Half an hour is enough for 256 MiB, the largest body, at 150 kB/s.
UPLOAD_S = 1800
_UPLOAD_OPTIONS = {"timeout": f"{UPLOAD_S}s", "connect_timeout": "10s"}
_RETRIES = 5
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_RETRY_S = 60
# The minimum time between two renewals. A renewal may query a metadata service or start a program of the user. Without
# this limit, requests that are always refused, such as deletes with write-only credentials, would cause many renewals.
_RENEW_AGAIN_S = 10.0
# The public account and key of every installation of Azure's emulator. The key protects nothing else.
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


class _ClientSet(NamedTuple):
    """Pairs of clients that were created together. The first of a pair retries requests by itself, the second does not.

    Attributes:
        number: The number of renewals before this set.
        small: The clients for small bodies.
        large: The clients for large bodies, created when they are first needed.
    """

    number: int
    small: tuple[Any, Any]
    large: tuple[Any, Any] | None = None


class Clients:
    """The clients of a target. Threads may share them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._changing = threading.Lock()
        self._current = _ClientSet(0, _make(target, _CLIENT_OPTIONS))
        self._renew_at_s = 0.0

    @property
    def number(self) -> int:
        """The number of times that the clients were created again."""
        return self._current.number

    @property
    def store(self) -> Any:
        """The client that retries requests by itself."""
        return self._current.small[0]

    @property
    def once(self) -> Any:
        """The client that sends each request once."""
        return self._current.small[1]

    def of_uploads(self) -> tuple[Any, Any]:
        """Return both clients for large bodies."""
        with self._changing:
            current = self._current
            if current.large is None:
                current = self._current = current._replace(large=_make(self._target, _UPLOAD_OPTIONS))
        return current.large or current.small

    def renew(self, refused: int) -> bool:
        """Create the clients again after the service refused those with the number `refused`.

        If several threads are refused at the same time, the first thread creates the clients for all of them.

        Returns:
            Whether a retry makes sense. It does not if the clients were created again a few seconds ago.

        Raises:
            RemoteDenied: The credentials cannot be read.
        """
        with self._changing:
            if self._current.number != refused:
                return True
            if time.monotonic() < self._renew_at_s:
                return False
            failure: RemoteError | None = None
            try:
                self._current = _ClientSet(refused + 1, _make(self._target, _CLIENT_OPTIONS))
            except RemoteError as error:
                failure = error
            self._renew_at_s = time.monotonic() + _RENEW_AGAIN_S
        if failure is not None:
            msg = f"{self._target} refused the credentials, and they cannot be read again: {failure.message}"
            raise RemoteDenied(msg, hint=credentials_hint(self._target))
        return True


def _make(target: Target, options: Mapping[str, str]) -> tuple[Any, Any]:
    """Return two clients of a target: one retries requests by itself, and the other sends each request once.

    This call reads the environment and the credential files.
    """
    if target.kind != "url":
        raise BadInput(f"{target} is a directory, not object storage")
    try:
        import obstore.store  # noqa: F401 - fails if it is not installed
    except ImportError as error:
        raise MissingExtra.of(error, f"{target} needs", "obstore", "remote") from error
    if target.scheme == "memory":
        from obstore.store import MemoryStore

        store = _memory.setdefault(target.bucket, MemoryStore())
        return store, store
    failure: RemoteError | None = None
    try:
        return _client(target, _RETRIES, options), _client(target, 0, options)
    except RemoteDenied:
        raise
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
        # The user who sets an endpoint in the environment decides about TLS. The endpoint may be on loopback.
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
    profile = os.environ.get("AWS_PROFILE")
    if not profile and not has_aws_folder():
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if not profile:  # the credentials may come from a role, and otherwise the refusal names ~/.aws
            return {}
        # Without the profile, the engine would use a role, which may belong to another account.
        msg = f"the profile AWS_PROFILE={printable(profile)} is read with boto3, which is not installed"
        hint = "pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise RemoteDenied(msg, hint=hint) from error
    return {"credential_provider": Boto3CredentialProvider()}


def _azure_config(target: Target) -> Any:
    endpoint = target.endpoint
    if not endpoint:
        return {}
    # `use_emulator` is set to false, because the environment may enable the emulator, and the engine would then use a
    # fixed port.
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
