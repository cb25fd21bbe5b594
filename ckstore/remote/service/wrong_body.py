"""Tests with a wrong body whether an S3 service compares the body of a request with the digest in its signature.

The engine cannot send such a request. So this module builds the request itself, with the account keys in the
environment.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
from datetime import UTC, datetime
from urllib.parse import urlsplit

from ckstore.remote.service.target import Target

_TIMEOUT_S = 20.0
_RIGHT, _WRONG = b"right", b"wrong"


def refuses_wrong_body(target: Target, key: str) -> bool | None:
    """Return whether a body that differs from its signed digest is refused, or None if this could not be tested.

    It can be tested if the service is S3, its endpoint is given, the keys of the account are in the environment, and
    the service accepts a right body.
    """
    key_id, secret = os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    endpoint = target.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if target.scheme != "s3" or not (key_id and secret and endpoint):
        return None
    region = target.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    try:
        statuses = [_put(target, endpoint, key, body, (key_id, secret, region)) for body in (_RIGHT, _WRONG)]
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return None if statuses[0] // 100 != 2 else statuses[1] // 100 != 2


def _put(
    target: Target, endpoint: str, key: str, body: bytes, account: tuple[str, str, str], *, digest_of: bytes = _RIGHT
) -> int:
    """Send a body with the digest of `digest_of`, and return the HTTP status."""
    key_id, secret, region = account
    parts, now = urlsplit(endpoint), datetime.now(UTC)
    path = f"{parts.path.rstrip('/')}/{target.bucket}/{target.prefix}{key}".removesuffix("/")
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    digest = hashlib.sha256(digest_of).hexdigest()
    headers = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if token := os.environ.get("AWS_SESSION_TOKEN"):
        headers["x-amz-security-token"] = token
    # Signature version 4, as in "Authenticating Requests" of the S3 API reference.
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"PUT\n{path}\n\n{lines}\n{names}\n{digest}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    signing = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("PUT", path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
