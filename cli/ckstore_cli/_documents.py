"""The JSON documents that commands print. Their keys, and the order of the keys, are part of the public interface.

docs/reference/command-line.md describes each key.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckstore.model.canonical import decimal_of_int

SAFE_INT = 2**53

_FORMS = {
    "CheckpointInfo": "id run step sequence created logical_bytes new_bytes reused_bytes leaf_count content parent "
    "message metrics metadata tags durable damaged elsewhere compacted superseded "
    "unhealthy unchanged",
    "CheckpointUsage": "run step logical_bytes alone_bytes shared_bytes dead_bytes id superseded packed_bytes",
    "Compacted": "run=info.run step=info.step before_bytes after_bytes",
    "CompactionEntry": "run=info.run step=info.step id=info.id base reason gone_bytes again",
    "CompactionReport": "dry_run checkpoints=plan.entries compacted skipped encoded_count plain_bytes encoded_bytes",
    "Damage": "run step names files blob what affects",
    "Diff": "before after same_content unchanged_count changed_bytes added removed changed values=plain files",
    "DiffLeaf": "name kind dtype? shape?dtype nbytes",
    "EvictReport": "remote dry_run freed_bytes read_back_bytes evicted skipped plan=plan.entries",
    "ExportCheck": "ok checkpoint=name id=checkpoint_id destination file_count checked_bytes damage",
    "ExportDamage": "file names what",
    "ExportReport": "checkpoint=name id=checkpoint_id destination nbytes tensor_count files tied state_names left_out "
    "unsafe_globals",
    "FileChange": "path kind before after changed_bytes",
    "FileSummary": "kind mode:04o nbytes",
    "GcReport": "freed_bytes freed_count filesystem_freed_bytes held_bytes held linked_outside differences "
    "dead_pack_bytes catalog_bytes waiting explanation cached_bytes superseded",
    "HeldBlob": "digest nbytes why holders",
    "Holder": "pid command how",
    "LeafChange": "name before after changed_bytes largest_absolute=difference.largest_absolute "
    "largest_relative=difference.largest_relative",
    "ListLine": "name kind dtype? shape?dtype nbytes",
    "Pin": "name run step id reason created expires expired dangling",
    "PlainChange": "name kind before after",
    "PlanEntry": "run step id=info.id keep reasons",
    "ReindexReport": "ok checkpoint_count blob_count blob_bytes orphan_count orphan_bytes restored_count copy_count "
    "copy_bytes tag_count pin_count incomplete problems old_catalog? relinked",
    "RemotePruneReport": "remote dry_run removed_count removed_bytes condemned_count condemned_bytes "
    "uncondemned_count blob_count blob_bytes voided_count finished_count checkpoints=retention.plan.entries "
    "skipped=retention.skipped",
    "RemoteVerifyReport": "ok remote as_of mode checkpoint_count blob_count blob_bytes read_count checked_bytes sample "
    "in_time damage",
    "RetentionReport": "policy=plan.policy checkpoints=plan.entries skipped warnings=plan.notes",
    "RunSummary": "run=name checkpoint_count newest_step=newest.step newest_id=newest.id highest_step "
    "created=newest.created",
    "RunUsage": "run checkpoint_count logical_bytes alone_bytes shared_bytes packed_bytes",
    "SaverStatus": "pid trainer state run step done_bytes total_bytes since",
    "Skipped": "run=info.run step=info.step reason",
    "StoreClaims": "store host path is_own checkpoints",
    "TransferReport": "direction remote dry_run new_count moved_count moved_bytes reused_bytes duration_s warnings "
    "checkpoints",
    "Uncompacted": "run=info.run step=info.step reason",
    "Usage": "logical_bytes disk_bytes alone_bytes shared_bytes unused_bytes waiting_bytes dead_bytes "
    "saved_bytes encoded_bytes runs checkpoints cached_bytes elsewhere_bytes bytes_by_user",
    "VerifyReport": "ok mode checkpoint_count checked_bytes decoded_bytes sample blob_count read_count unread_count "
    "oldest_check? in_time whole damage findings repaired unrepaired quarantined healable elsewhere",
    "Waiting": "run step id dropped until nbytes problem",
}
"""The keys of each type, in order. A type that is not listed has its fields as keys.

``key=a.b`` reads the value from another attribute. ``key?`` is null if the value is empty, and ``key?other`` is null
if the attribute `other` is empty. ``key:spec`` formats the value. Types are given by name, so that a command need not
import them.
"""


def to_json(value: object, **given: object) -> Any:
    """Return `value` in a form for JSON. Integers beyond 2^53 and numbers that are not finite become strings."""
    # `given` maps keys to values that replace the attributes.
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INT else decimal_of_int(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return _object(value, given) if dataclasses.is_dataclass(value) else repr(value)


def _object(value: Any, given: Mapping[str, object]) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    form = _FORMS.get(type(value).__name__)
    keys = [field.name for field in dataclasses.fields(value)] if form is None else form.split()
    document = {}
    for key in keys:
        name, _, other = key.partition("=")
        name, null, condition = name.partition("?")
        name, _, spec = name.partition(":")
        if name in given:
            found = given[name]
        else:
            # The value at a dotted path of attributes, or None if an attribute on the path is None.
            found = value
            for attribute in (other or name).split("."):
                found = None if found is None else getattr(found, attribute)
        empty = null and not (getattr(value, condition) if condition else found)
        document[name] = None if empty else to_json(format(found, spec) if spec else found)
    return document
