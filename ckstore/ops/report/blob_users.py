"""Find the users of a blob or a piece (`why`) in the manifests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from typing import get_args

from ckstore.errors import AmbiguousRef, BadInput, CkstoreError, NewerFormat, NoSuchRef
from ckstore.fs import dirfd_stat, files
from ckstore.model.digest import ALGORITHMS, is_digest, short_id
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, Manifest
from ckstore.model.names import CheckpointKey, spellings
from ckstore.model.reports.usage import Use, UseKind
from ckstore.model.sizes import MEDIUM_BELOW_BYTES
from ckstore.objects.checkpoints import holder_names_at, look, may_lack_blobs
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN
from ckstore.ops.context import Context
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.refs.listing import infos

# The minimum number of digits, which is the same for ids. In a store with a few thousand blobs, fewer digits would
# match several blobs by accident.
_LEAST_DIGITS = 6
_PATTERN = re.compile(r"(?:([a-z0-9]+)-)?([0-9a-f]{6,64})\Z")
_Found = tuple[tuple[int, str, str, int], Use]


def why(context: Context, digest: str) -> list[Use]:
    """Return the users of a blob or a piece; see `ckstore.Store.why`."""
    wanted = _complete_pattern(context, digest)
    whole = is_digest(wanted)
    digests: set[str] = set()
    found: dict[str, _Found] = {}
    superseded = _superseded(context)
    for key in _places(context, wanted) if whole else _published(context):
        manifest = _manifest_with(context, key, wanted)
        if manifest is None:
            continue
        names_by_digest, kinds = _users(manifest[0], wanted, whole=whole)
        digests.update(names_by_digest)
        names = {name: None for listed in names_by_digest.values() for name in listed}
        if names_by_digest:
            order = (manifest[0].sequence, manifest[0].created, manifest[1], key.generation)
            folder = context.layout.checkpoint(key)
            is_local = any(dirfd_stat.exists(folder / BLOBS / digest) for digest in names_by_digest)
            holders = () if is_local else holder_names_at(folder)
            kept = _kept(manifest[0], kinds)
            use = Use(
                key.run, key.step, tuple(names), holders, *kept, id=manifest[1], superseded=manifest[1] in superseded
            )
            # Keep only the latest generation of a checkpoint, since the next gc drops former ones.
            found[manifest[1]] = max(found.get(manifest[1], (order, use)), (order, use), key=itemgetter(0))
    digests.update(_unused(context, wanted, whole=whole))
    if len(digests) > 1:
        listed = ", ".join(sorted(digests)[:4])
        msg = f"{digest}: {len(digests)} digests begin with these digits ({listed}{' …' if len(digests) > 4 else ''})"
        raise AmbiguousRef(msg, hint="give more digits")
    if not digests:
        msg = f"{digest}: no checkpoint uses a blob or a piece of that name, and the store has no such blob"
        raise NoSuchRef(msg, hint="the names of the files in a checkpoint's blobs/ are digests")
    return [use for _, use in sorted(found.values(), key=itemgetter(0))]


def _superseded(context: Context) -> set[str]:
    """Return the ids of the superseded checkpoints."""
    keys = _published(context)
    counts = Counter(key.run_step for key in keys)
    at = stamps(context, (key for key in keys if counts[key.run_step] > 1))
    found = infos(context, at=at) if at else []
    current = {info.id for info in found if not info.superseded}
    return {info.id for info in found} - current


def _complete_pattern(context: Context, digest: str) -> str:
    """Return the digest, or its first characters, with the name of the algorithm."""
    match = _PATTERN.match(str(digest))
    prefix = context.algorithm.prefix
    known = {algorithm.prefix for algorithm in ALGORITHMS.values()}
    if match is None or match[1] not in (None, *known):
        msg = f"a digest is {prefix}- and its digits, of which the first {_LEAST_DIGITS} suffice, got {digest!r}"
        raise BadInput(msg)
    return f"{match[1] or prefix}-{match[2]}"


def _published(context: Context) -> list[CheckpointKey]:
    return [key for key, _ in context.layout.published()]


def _places(context: Context, digest: str) -> list[CheckpointKey]:
    """Return the checkpoints to search.

    For a large blob, these are the checkpoints with a link to the blob, and all evicted and compacted checkpoints.
    """
    try:
        status = dirfd_stat.status(context.layout.blob(digest))
    except FileNotFoundError:  # without a canonical name, every manifest must be searched
        return _published(context)
    # The bytes of a small blob may also be a piece in a pack, which has another name.
    if status.st_size < MEDIUM_BELOW_BYTES:
        return _published(context)
    return [
        place
        for place in _published(context)
        if dirfd_stat.find(context.layout.checkpoint(place) / BLOBS / digest) is not None
        or may_lack_blobs(context.layout.checkpoint(place))
        or dirfd_stat.exists(context.layout.checkpoint(place) / PLAIN)
    ]


def _manifest_with(context: Context, key: CheckpointKey, text: str) -> tuple[Manifest, str] | None:
    """Return the manifest and id of a checkpoint if the manifest contains the text, otherwise None."""
    try:
        path = context.layout.checkpoint(key)
        data = files.read_file(path / MANIFEST, most_bytes=MANIFEST_MAX_BYTES)
        with suppress(FileNotFoundError):  # only a compacted checkpoint has this file
            data += files.read_file(path / PLAIN, most_bytes=MANIFEST_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except NewerFormat:
        raise
    except CkstoreError:  # the manifest is damaged
        return None
    # Parse a manifest only if it contains the digest, because searching the text is much cheaper than parsing.
    if text.encode("ascii") not in data:
        return None
    published = look(context.layout, key).published
    return None if published is None else (published.manifest, published.manifest_id)


def _users(manifest: Manifest, wanted: str, *, whole: bool) -> tuple[dict[str, list[str]], dict[int, UseKind]]:
    """Return the names of the leaves that use each matching digest, and the kind of use of each blob, by its index."""

    def fits(digest: str) -> bool:
        return digest == wanted if whole else digest.startswith(wanted)

    names: dict[int, list[str]] = {}
    spelled = spellings(leaf.name for leaf in manifest.leaves)
    for leaf in manifest.leaves:
        names.setdefault(leaf.storage, []).append(spelled[leaf.name])
    users: dict[str, list[str]] = {blob.digest: [] for blob in manifest.stored if fits(blob.digest)}
    kinds: dict[int, UseKind] = {}
    files = [manifest.files_of(index) for index in range(len(manifest.blobs))]
    for i, storage in enumerate(manifest.storages):
        for extent in storage.extents:
            own = {extent.piece, manifest.blobs[extent.blob].digest, files[extent.blob][0]}
            for digest in own.union(files[extent.blob]):
                if fits(digest):
                    users.setdefault(digest, []).extend(names.get(i, []))
                    if digest not in own:
                        kinds.setdefault(extent.blob, "base")
                    else:
                        kinds[extent.blob] = "encoded" if manifest.places[extent.blob] is None else "plain"
    return users, kinds


def _kept(manifest: Manifest, kinds: Mapping[int, UseKind]) -> tuple[UseKind, int, int]:
    """Return how a checkpoint stores some blobs, their total plain size, and the total size of their files."""
    sizes = dict(manifest.stored)
    kept_bytes = sum(sizes[file] for file in {manifest.files_of(index)[0] for index in kinds})
    ways: tuple[UseKind, ...] = get_args(UseKind)
    how = next((kind for kind in ways if kind in kinds.values()), ways[0])
    return how, sum(manifest.blobs[index].nbytes for index in kinds), kept_bytes


def _unused(context: Context, wanted: str, *, whole: bool) -> set[str]:
    """Return the matching digests of blobs in ``blobs/``, which may be unused."""
    if whole:
        return {wanted} if dirfd_stat.exists(context.layout.blob(wanted)) else set()
    try:
        names = dirfd_stat.names(context.layout.blobs / short_id(wanted, 2))
    except FileNotFoundError:
        return set()
    return {name for name in names if is_digest(name) and name.startswith(wanted)}
