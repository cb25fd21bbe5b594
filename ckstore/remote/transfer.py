"""Push, pull and evict with the arguments of callers: the checkpoints, the remote and the limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.remote.transfer import EvictReport, TransferReport
from ckstore.model.sizes import parse_size
from ckstore.objects.publish import IfExists
from ckstore.ops.context import Context
from ckstore.ops.refs.find import AnyRef, text_of
from ckstore.remote import pull as pulling
from ckstore.remote import push as pushing
from ckstore.remote import push_plan as planning
from ckstore.remote.choice import HINT, Choice, ChoiceOptions, TransferOptions
from ckstore.remote.documents.claims import end_claims
from ckstore.remote.documents.remote_info import read_info
from ckstore.remote.keys import Place
from ckstore.remote.metadata_sync import MetadataObject
from ckstore.remote.objects import Remote
from ckstore.remote.pull import Pull
from ckstore.remote.push import TransferLimits
from ckstore.remote.remote_only import evict as evicting
from ckstore.remote.remote_opener import RemoteLike, named_remote, near, open_source, source_of
from ckstore.remote.remote_refs import find_on_remote, newest_of_steps
from ckstore.remote.source import Source

Refs = AnyRef | Iterable[AnyRef] | None


def _manner(options: TransferOptions) -> TransferLimits:
    """Return the limits of a transfer."""
    bwlimit = options.get("bwlimit")
    bytes_s = parse_size(bwlimit) if isinstance(bwlimit, str) else bwlimit
    if bytes_s is not None and bytes_s <= 0:
        raise BadInput(f"bwlimit must be a number of bytes per second above 0, got {bwlimit!r}")
    return TransferLimits(bytes_s, options.get("progress"))


def push(
    context: Context,
    refs: Refs,
    remote: RemoteLike | None,
    options: TransferOptions,
    *,
    dry_run: bool = False,
    lacks_all: bool = False,
) -> TransferReport:
    """See `ckstore.Store.push`. With `lacks_all`, the caller has just checked that the remote has none of `refs`."""
    how = replace(_manner(options), lacks_all=lacks_all)
    infos = Choice(refs, options).of(context)
    if dry_run:
        return planning.plan_push(context, infos, named_remote(context, remote, writing=False)).report()
    return pushing.push(context, infos, named_remote(context, remote), how)


def push_metadata(context: Context, remote: RemoteLike, said: Sequence[MetadataObject]) -> pushing.PushedMetadata:
    """Push metadata of checkpoints that a remote has.

    Raises:
        CkstoreError: The remote accepts none of it.
    """
    return pushing.push_metadata(context, named_remote(context, remote), said)


def pull(
    context: Context,
    refs: Refs,
    remote: RemoteLike | None,
    if_exists: IfExists,
    options: TransferOptions,
    *,
    dry_run: bool = False,
) -> TransferReport:
    """See `ckstore.Store.pull`."""
    how = _manner(options)
    if not dry_run:
        context.check_writable()
    there = open_source(context, remote)
    # Check that the remote still exists, because an empty bucket would look like a remote without checkpoints.
    if isinstance(there, Remote):
        read_info(there.objects, there.name)
    if dry_run:
        source = source_of(there)
        places = _places(context, source, Choice(refs, options))
        return pulling.plan_pull(context, source, places, if_exists).report()
    source = source_of(there, near(context.layout))
    work = Pull(context, source, how, if_exists)
    report = work.bring(_places(context, source, Choice(refs, options)))
    if work.brought_back and isinstance(there, Remote):
        end_claims(context, there)
    return report


def evict(
    context: Context, refs: Refs, remote: RemoteLike | None, options: ChoiceOptions, *, rule: bool, dry_run: bool
) -> EvictReport:
    """See `ckstore.Store.evict`."""
    choice = Choice(refs, options)
    if rule:
        if choice.refs is not None or choice.by_rule() or remote is not None:
            raise BadInput("keep_local selects the checkpoints and the mirror is the remote, but others were given")
        return evicting.evict_by_rule(context, dry_run=dry_run)
    if choice.refs is None and not choice.by_rule():
        raise BadInput("no checkpoint was named", **HINT)
    infos = choice.of(context)
    return evicting.evict(context, infos, named_remote(context, remote, writing=not dry_run), dry_run=dry_run)


def _places(context: Context, source: Source, choice: Choice) -> list[Place]:
    """Return the checkpoints of a source that the caller selected."""
    if choice.by_rule():
        run = choice.run if choice.run is not None else context.run
        places = source.places("" if run is None else f"{run}/")
        if choice.tagged:
            tagged = {*source.tags().values()}
            return [place for place in places if place in tagged]
        return newest_of_steps(source, places, context.layout.hash_prefix)
    found = [ref.id if isinstance(ref, CheckpointInfo) else text_of(ref) for ref in choice.several()]
    prefix = context.layout.hash_prefix
    return [*dict.fromkeys(find_on_remote(source, ref, run=context.run, hash_prefix=prefix) for ref in found)]
