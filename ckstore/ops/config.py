"""The settings of a store that may change: ``config.json``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ckstore.fs import files
from ckstore.model.retention import RetentionPolicy
from ckstore.model.seal import MEMBER, check_seal, seal
from ckstore.model.settings import parse_config, render_config
from ckstore.objects import small

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout
    from ckstore.ops.context import Context

RETENTION = "retention"
_CONFIG_MAX_BYTES = 2**20


def read_config(layout: Layout) -> dict[str, Any]:
    """Return the settings; without a ``config.json`` there are none.

    Raises:
        NewerFormat: A newer ckstore wrote it.
        CkstoreError: It is damaged.
        OSError: It cannot be read.
    """
    try:
        data = files.read_file(layout.config, most_bytes=_CONFIG_MAX_BYTES)
    except FileNotFoundError:
        return {}
    config = parse_config(data, str(layout.config))
    check_seal(data, str(layout.config))
    config.pop(MEMBER, None)
    return config


def retention_of(context: Context) -> RetentionPolicy | None:
    """Return the policy of the store, or None.

    Raises:
        BadInput: It has a rule that this ckstore does not know.
        CkstoreError, OSError: As `read_config`.
    """
    stored = read_config(context.layout).get(RETENTION)
    return None if stored is None else RetentionPolicy.from_json(stored, f"{context.layout.config}: {RETENTION}")


def set_retention(context: Context, policy: RetentionPolicy | None) -> None:
    """Keep a policy in the store, durably, or remove it; other settings stay as they are.

    Raises:
        CkstoreError: The present settings are damaged, or others write to the store all the time; nothing was changed.
        OSError: The system refused.
    """
    context.check_writable()
    layout = context.layout
    with small.changing(layout), files.opened(layout.root, os.O_RDONLY | os.O_DIRECTORY) as fd:
        config = read_config(layout)
        config.pop(RETENTION, None)
        if policy is not None:
            config[RETENTION] = policy.to_json()
        small.replace_file(fd, layout.config.name, seal(render_config(config)))
