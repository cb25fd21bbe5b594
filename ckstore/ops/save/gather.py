"""Determine the input of `commit`: the files, their names, the step, and whether the files are complete."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ckstore.containers.parsed_values import STATE_SUFFIXES
from ckstore.errors import BadInput, CannotStore
from ckstore.fs.tree import Entry, foreign, look_at, walk
from ckstore.model.document import parse_foreign
from ckstore.model.names import MAX_STEP, check_path, parent_of

_STEP_NAME = re.compile(r"(?:checkpoint|step|global_step|iter|iteration)[-_=]?([0-9]{1,16})(?:-v[0-9]+)?\Z")
_STEP_AMONG_OTHERS = re.compile(r"(?:\A|[-_])step=([0-9]{1,16})(?:[-_]|\Z)")
"""Matches the step in names as Lightning writes them: ``epoch=1-step=400``, ``epoch=1-val_loss=0.32-step=400-v1``."""
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*\Z")
_SHOWN = 3
_INDEX_SUFFIX = ".index.json"
# This is much more than the size of the index of any model. A larger file is not parsed as an index.
_INDEX_MOST_BYTES = 64 * 2**20


def gather(paths: Sequence[Path]) -> list[Entry]:
    """Return all entries to commit, which are the content of one directory or the given paths with their own names."""
    # A given path may be a symlink, but symlinks below a given path are not followed.
    if not paths:
        raise BadInput("commit takes at least one path, got none")
    roots = [_resolved(path) for path in paths]
    if len(roots) == 1 and roots[0].is_dir():
        entries = list(walk(foreign(roots[0])))
    else:
        entries = []
        for path, root in zip(paths, roots, strict=True):
            top = look_at(foreign(root), Path(os.path.abspath(path)).name)
            entries += [top, *(walk(top.where, top.path) if top.kind == "directory" else ())]
    check_names(entries)
    return entries


def _resolved(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist") from error
    except (RuntimeError, OSError) as error:
        raise BadInput(f"{path} cannot be reached: {error}") from error


def check_names(entries: Sequence[Entry]) -> None:
    """Refuse files whose names cannot be stored, and two files with the same name."""
    seen: set[str] = set()
    for entry in entries:
        try:
            check_path(entry.path, "the name of a file")
        except BadInput as error:
            raise CannotStore(entry.path, error.message, hint="rename it, then commit again") from error
        if entry.path in seen:
            raise BadInput(f"two of the paths have the name {entry.path}", hint="commit the directory that holds both")
        seen.add(entry.path)


def step_in_name(paths: Sequence[Path]) -> int | None:
    """Return the step in the name of a single path, such as ``checkpoint-500``, or None.

    Names such as ``step-500``, ``global_step500`` (DeepSpeed), ``iter_0000500`` (Megatron) and ``epoch=1-step=500``
    (Lightning) are also recognized, with or without a suffix.
    """
    return _step_of(Path(os.path.abspath(paths[0])).name) if len(paths) == 1 else None


def _step_of(name: str) -> int | None:
    bare = _SUFFIX.sub("", name)
    match = _STEP_NAME.match(bare) or _STEP_AMONG_OTHERS.search(bare)
    return int(match[1]) if match and int(match[1]) <= MAX_STEP else None


def check_one_checkpoint(paths: Sequence[Path], entries: Sequence[Entry]) -> None:
    """Refuse paths that hold several checkpoints, since one commit makes one checkpoint."""
    steps = {
        entry.path: step
        for entry in entries
        if "/" not in entry.path
        and (entry.kind == "directory" or entry.path.endswith(STATE_SUFFIXES))
        and (step := _step_of(entry.path)) is not None
    }
    if len(steps) < 2:
        return
    several = sorted(steps, key=lambda name: (steps[name], name))
    more = f" and {len(several) - _SHOWN} more" if len(several) > _SHOWN else ""
    of_one = len(paths) == 1
    where = f"{paths[0]} holds" if of_one else "the paths are"
    msg = f"{where} {len(several)} checkpoints, but one commit makes one: {', '.join(several[:_SHOWN])}{more}"
    if of_one:
        command = f"ckstore import-history {shlex.quote(str(paths[0]))} commits each separately"
    else:
        given = {Path(os.path.abspath(path)).name: str(path) for path in paths}
        each = [shlex.quote(given.get(name, name)) for name in several[:_SHOWN]] + ["…"] * bool(more)
        command = f'to commit each separately, `for d in {" ".join(each)}; do ckstore commit "$d"; done`'
    raise BadInput(
        msg,
        hint=(
            "commit each separately, in the order of their steps, as ckstore.training.import_history does; or pass "
            "step= to make one checkpoint of all"
        ),
        command_hint=f"{command}; or pass --step to make one checkpoint of all",
    )


def check_apart(entries: Sequence[Entry], paths: Sequence[Path], store: Path) -> None:
    """Refuse to commit a store into itself."""
    # Resolve both paths, since a path may lead into the store through a symlink. Then the commit would read its own
    # staging directory.
    root = store.resolve()
    for path in paths:
        here = path.resolve()
        if here == root or root in here.parents or here in root.parents:
            inside = [entry for entry in entries if str(entry.where) == str(root)]
            if here == root or root in here.parents or inside:
                msg = f"{path} and the store {store} overlap, and a store cannot be committed into itself"
                raise BadInput(msg, hint="name the directories of the checkpoints")


def signs_of_incompleteness(entries: Sequence[Entry], names: Sequence[str]) -> list[str]:
    """Return a sentence for each sign that these files are unfinished; `names` are the names of the paths.

    The signs are the marks of Transformers (``checkpoint-is-incomplete.txt``, ``tmp-checkpoint-N``), NeMo
    (``-unfinished``), Orbax (``.orbax-checkpoint-tmp-``) and the Hugging Face Hub (``.incomplete``), a distributed
    checkpoint without ``.metadata``, and an index that names missing files.
    """
    present = {entry.path for entry in entries}
    signs = []
    for path in (*names, *sorted(present)):
        name = path.rpartition("/")[2]
        if (
            name == "checkpoint-is-incomplete.txt"
            or name.endswith((".incomplete", "-unfinished"))
            or name.startswith("tmp-checkpoint-")
            or ".orbax-checkpoint-tmp" in name
        ):
            signs.append(f"{path} is marked as unfinished")
    for folder in sorted({parent_of(path) for path in present if path.endswith(".distcp")}):
        prefix = f"{folder}/" if folder else ""
        if not {f"{prefix}.metadata", f"{prefix}model.safetensors.index.json"} & present:
            signs.append(f"{prefix}.metadata is missing next to the .distcp files")
    for entry in entries:
        if entry.kind == "file" and entry.path.endswith(_INDEX_SUFFIX):
            signs += _missing_shards(entry, present)
    return signs


def _missing_shards(entry: Entry, present: set[str]) -> list[str]:
    """Return a sentence if an index of shards, such as ``model.safetensors.index.json``, names missing files."""
    if entry.nbytes > _INDEX_MOST_BYTES:
        return []
    try:
        files = set(parse_foreign(entry.content())["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # the file is no index of shards
        return []
    folder = parent_of(entry.path)
    lacking = sorted(
        name for name in files if isinstance(name, str) and (f"{folder}/{name}" if folder else name) not in present
    )
    missing = f"{len(lacking)} missing files, such as" if len(lacking) > 1 else "a missing file:"
    return [f"{entry.path} names {missing} {lacking[0]}"] if lacking else []
