"""The settings of the mirror in ``config.json``; `ckstore.ops.config` describes them."""

from __future__ import annotations

from typing import Final

from ckstore.errors import BadInput
from ckstore.model.document import shown
from ckstore.ops.config_file import YEAR_S, Setting, number_in, read_config, whole_in
from ckstore.ops.context import Context

MIRROR: Setting[str | None] = Setting(
    "mirror", None, "the name of a remote", lambda value: isinstance(value, str) and bool(value)
)
MIRROR_AGE_S = Setting("mirror_age_s", 600.0, "seconds from 1 to a year", number_in(1, YEAR_S))
MIRROR_BYTES_S: Setting[int | None] = Setting(
    "mirror_bytes_s", None, "a whole number of bytes a second above 0", whole_in(1, 2**53)
)
# If the remote is down during many saves, only three checkpoints are kept for it, and not all.
MIRROR_KEEP = Setting("mirror_keep", 3, "a whole number from 0 to 10000", whole_in(0, 10_000))
KEEP_REMOTE: Final = "keep_remote"


def check_mirror(context: Context, member: str, name: object) -> object:
    """Return the name of a remote that can be the mirror of a store; raise for any other value."""
    remotes = read_config(context.layout).get("remotes") or {}
    if not isinstance(name, str) or name not in remotes:
        there = (
            f"its remotes: {', '.join(sorted(remotes))}" if remotes else "ckstore remote add NAME s3://BUCKET/PREFIX"
        )
        raise BadInput(f"{member}: the store has no remote {shown(name)}", hint=there)
    target = remotes[name].get("target") if isinstance(remotes[name], dict) else None
    if isinstance(target, dict) and target.get("kind") == "store":
        hint = f"copy it into a remote: ckstore remote convert {name} NEW DIRECTORY"
        raise BadInput(f"{member}: {shown(name)} is a store, and nothing is pushed to a store", hint=hint)
    return name
