r"""Names of runs, tags, leaves and committed files.

Names are checked before they are stored, and again before they are used as paths. The name of a leaf is its path in the
state, escaped so that no two paths have the same name. ``{"a": {"b": t}}`` has the leaf ``a.b``, and ``{"a.b": t}`` has
the leaf ``a\.b``. The name of a file is its relative path. Names in a Linux filesystem are bytes. Bytes that are not
UTF-8 are stored as lone surrogates, as in `os.fsdecode`.
Sources: docs/format/v1.md, "Names", "Files" and, for the sequence numbers at the end, "Order of commits".
"""

from __future__ import annotations

import operator
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ckstore.errors import BadInput
from ckstore.model.canonical import decimal_of_int
from ckstore.model.document import shown

_ESCAPE = re.compile(r"\\(.)")
RUN_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,100}\Z")
STEP_PATTERN = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_ID_PATTERN = re.compile(r"(?:(?:xxh3|blake3)-)?[0-9a-fA-F]{6,}\Z")
# Every JSON reader represents integers up to this one exactly.
MAX_STEP = 2**53
DEFAULT_RUN = "main"
COMPUTED = ("latest", "latest-valid", "latest-healthy")
"""Refs that are resolved at each use. A tag may not have one of these names."""

SHORT_DIGITS = 10
"""Number of hexadecimal digits of the id in the name of a checkpoint's directory, unless two names would be equal."""
_DIRECTORY_PATTERN = re.compile(r"(0|[1-9][0-9]{0,15})(?:\.([0-9a-f]{10,64})(?:\.([1-9][0-9]{0,5}))?)?\Z")


class DirectoryName(NamedTuple):
    """The parts of the name of a checkpoint's directory."""

    step: int
    digits: str  # the first hexadecimal digits of the id; empty in a store of a draft format
    generation: int  # starts at 0; a compacted form or a repaired copy has the next number

    def __str__(self) -> str:
        digits = f".{self.digits}" if self.digits else ""
        return f"{self.step}{digits}{f'.{self.generation}' if self.generation else ''}"


class CheckpointKey(NamedTuple):
    """The key under which a checkpoint is published: run, step and the name of its directory in the run."""

    run: str
    step: int
    directory: str

    @property
    def name(self) -> str:
        """``RUN@STEP``, which is the same for all checkpoints of the step."""
        return f"{self.run}@{self.step}"

    @property
    def run_step(self) -> tuple[str, int]:
        """Run and step."""
        return self.run, self.step

    def fits(self, run: str, step: int, id: str) -> bool:
        """Return whether a directory with this key may hold the checkpoint with this run, step and id."""
        name = parse_directory(self.directory)
        return name is not None and self.run_step == (run, step) and id.rpartition("-")[2].startswith(name.digits)

    @property
    def is_draft(self) -> bool:
        """Whether the name has only the step, as in stores of a draft format."""
        return "." not in self.directory

    @property
    def any_generation(self) -> CheckpointKey:
        """The key of the first generation, which is the same for all forms of one checkpoint."""
        # Only the name of a later generation has two dots.
        return self if self.directory.count(".") < 2 else self._replace(directory=self.directory.rpartition(".")[0])

    @property
    def digit_count(self) -> int:
        """Number of digits of the id in the name of the directory, 0 for a draft format."""
        name = parse_directory(self.directory)
        return 0 if name is None else len(name.digits)

    @property
    def generation(self) -> int:
        """The generation in the name of the directory; a draft format has -1, so that it sorts before all others."""
        if self.is_draft:
            return -1
        return int(self.directory.rpartition(".")[2]) if self.directory.count(".") == 2 else 0


def parse_directory(name: str) -> DirectoryName | None:
    """Return the parts of the name of a checkpoint's directory, or None for another name."""
    found = _DIRECTORY_PATTERN.match(name)
    if found is None or (step := int(found[1])) > MAX_STEP:
        return None
    return DirectoryName(step, found[2] or "", int(found[3] or 0))


def key_of(run: str, directory: str) -> CheckpointKey | None:
    """Return the key of a directory of a run, or None if the directory does not have the name of a checkpoint."""
    found = parse_directory(directory)
    return None if found is None else CheckpointKey(run, found.step, directory)


def keys_in(run: str, names: Mapping[str, int]) -> dict[CheckpointKey, int]:
    """Return the keys of the directories in a run that have names of checkpoints, with the number of each name."""
    return {key: number for name, number in names.items() if (key := key_of(run, name)) is not None}


def directory_of(step: int, id: str, *, digit_count: int = SHORT_DIGITS, generation: int = 0) -> str:
    """Return the name of the directory of a checkpoint with this id."""
    return str(DirectoryName(step, id.rpartition("-")[2][:digit_count], generation))


def join_key(path: str, key: str) -> str:
    """Return the name of the value at the string key `key` of the dict named `path`."""
    # Most keys have nothing to replace. For such a key, the four calls take at most a third of the time of
    # str.translate.
    escaped = key.replace("\\", "\\\\").replace(".", "\\.").replace("[", "\\[").replace("]", "\\]") or "\\0"
    return f"{path}.{escaped}" if path else escaped


def plain(name: str) -> str:
    r"""Return a name without escapes, such as ``model.0.weight`` for ``model.0\.weight``.

    Two different names may become equal.
    """
    if "\\" not in name:
        return name
    return _ESCAPE.sub(r"\1", name) if "\\\\" in name or name[-1] == "\\" else name.replace("\\", "")


def spellings(names: Iterable[str]) -> dict[str, str]:
    r"""Return the spelling of each name for users, without backslashes unless two spellings would be equal.

    ``a\.b`` is spelled ``a.b``, unless another name is ``a.b``. No two names have the same spelling.
    """
    names = tuple(names)
    if not any("\\" in name for name in names):
        return dict(zip(names, names, strict=True))
    written = {name: plain(name) for name in names}
    count = Counter(written.values())
    return {
        name: name if count[short] > 1 or (short != name and short in written) else short
        for name, short in written.items()
    }


def spelled(names: Iterable[str]) -> list[str]:
    """Return the spellings of names for users; see `spellings`."""
    names = tuple(names)
    written = spellings(names)
    return [written[name] for name in names]


def join_index(path: str, index: int) -> str:
    """Return the name of the value at `index` of the list, tuple or int-keyed dict named `path`."""
    try:
        return f"{path}[{index}]"
    except ValueError:  # more digits than str() accepts
        return f"{path}[{decimal_of_int(index)}]"


AUTO = "auto"
"""The value of ``run=`` that creates a new run, named after the run of the store handle."""
CAPTURED = "training"
"""The key of the record of the training in a state from `ckstore.training.capture`."""


def check_run(run: object) -> str:
    """Return `run` if it is valid, otherwise raise an error."""
    if not isinstance(run, str) or not is_run(run):
        msg = f"a run name has 1 to 100 of the characters A-Z a-z 0-9 . _ -, got {run!r}"
        raise BadInput(msg, hint="name one run: only the rules of config take globs" if "*" in str(run) else "")
    return run


def check_own_run(run: object) -> str:
    """Return `run` if it is a valid name and not ``auto``, for calls that need a specific run."""
    if run == AUTO:
        msg = f'run="{AUTO}" takes a new run, but this needs the name of a specific run'
        raise BadInput(msg, hint='one process chooses it by Store.open(path, run="auto").run; pass that name here')
    return check_run(run)


def is_run(name: str) -> bool:
    """Return whether `name` is a valid run."""
    return RUN_PATTERN.match(name) is not None and name not in (".", "..")


def step_of(name: str) -> int | None:
    """Return the step whose directory has this name, or None if the name is not a step."""
    return int(name) if STEP_PATTERN.match(name) and int(name) <= MAX_STEP else None


def check_step(step: object) -> int:
    """Return `step` as an int if it is valid, otherwise raise an error."""
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # also accepts NumPy's integers
    except TypeError:
        number = -1
    # Without this check, True would be step 1.
    if isinstance(step, bool) or not 0 <= number <= MAX_STEP:
        raise BadInput(f"a step is an integer from 0 to 2^53, got {step!r}")
    return number


def check_tag(tag: object) -> str:
    """Return `tag` if it is valid, otherwise raise an error."""
    if not isinstance(tag, str) or RUN_PATTERN.match(tag) is None or tag.startswith("."):
        msg = f"a tag has 1 to 100 of the characters A-Z a-z 0-9 . _ - and does not start with a dot, got {tag!r}"
        raise BadInput(msg)
    # A ref must be unambiguous. A tag 500 would hide the step 500, and a tag abcdef would hide an id.
    looks_like = "a step" if tag.isdigit() else "a ref that is computed" if tag in COMPUTED else "an id"
    if tag.isdigit() or tag in COMPUTED or _ID_PATTERN.match(tag):
        raise BadInput(f"a tag may not look like {looks_like}, got {tag!r}")
    return tag


def is_tag(name: str) -> bool:
    """Return whether `name` is a valid tag; other names in ``refs/`` are ignored."""
    try:
        check_tag(name)
    except BadInput:
        return False
    return True


# This is the limit of ext4, XFS and btrfs.
NAME_MAX_BYTES = 255
# PATH_MAX of Linux (4,096 bytes) also counts the path of the destination.
PATH_MAX_BYTES = 4000
MOST_LEVELS = 256
"""Maximum number of directories in the path of a file."""
_DELETE = 0x7F
_FIRST_PRINTABLE = 0x20


def check_path(path: object, what: str = "a path") -> str:
    """Return `path` if it is relative, without ``..``, and possible on all Linux filesystems, or raise an error."""
    if not isinstance(path, str) or not path:
        raise BadInput(f"{what} must be a non-empty string, got {shown(path)}")
    try:
        path_bytes = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise BadInput(f"{what} has characters that no file name can have: {shown(path)}") from error
    if len(path_bytes) > PATH_MAX_BYTES:
        raise BadInput(f"{what} has {len(path_bytes)} bytes, but a path has at most {PATH_MAX_BYTES}: {shown(path)}")
    levels = path.count("/")
    if levels > MOST_LEVELS:
        raise BadInput(
            f"{what} is in {levels} nested directories, but at most {MOST_LEVELS} are allowed: {shown(path)}"
        )
    for name in path.split("/"):
        _check_name(name, path, what)
    return path


def _check_name(name: str, path: str, what: str) -> None:
    problem = ""
    if name in ("", ".", ".."):
        problem = "must be relative, without empty names, . and .."
    elif any(ord(character) < _FIRST_PRINTABLE or ord(character) == _DELETE for character in name):
        problem = "must have no control characters"
    elif len(os.fsencode(name)) > NAME_MAX_BYTES:
        problem = f"must have names of at most {NAME_MAX_BYTES} bytes"
    if problem:
        raise BadInput(f"{what} {problem}, got {shown(path)}")


def parent_of(path: str) -> str:
    """Return the path of the directory that contains `path`, which is empty for a path at the top level."""
    return path.rpartition("/")[0]


def parents_of(path: str) -> list[str]:
    """Return the paths of all directories that contain `path`, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def differing_in_case(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two paths that are equal on a filesystem that ignores case, or None."""
    seen: dict[str, str] = {}
    for path in paths:
        # On ext4 with casefold and on macOS, one of the two files would overwrite the other.
        other = seen.setdefault(path.casefold(), path)
        if other != path:
            return other, path
    return None


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return `path` with a leading ``~`` or ``~user`` replaced by the home directory, as in a shell.

    Raises:
        BadInput: `path` is not a path, or contains a NUL character.
    """
    text: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise BadInput(f"a path is a str or a Path, got {shown(path)}")
    if "\0" in text:
        raise BadInput(f"a path has no NUL characters, got {shown(text)}", hint="remove the NUL character")
    # If the name of a directory starts with ``~``, the user can give its absolute path.
    return Path(os.path.expanduser(text))  # noqa: PTH111 - the method of Path raises for an unknown user


# A sequence number far beyond its neighbours is damaged or forged. If it counted, its checkpoint would always be the
# newest, and there would soon be no greater numbers left.
MAX_SEQUENCE = 2**53 - 1
"""The greatest sequence number that a manifest may have."""

# No store has this many saves in its lifetime. A greater distance is due to a flipped bit or a forged number.
WIDEST_GAP = 2**32
"""Maximum distance of a valid sequence number from the next smaller one in the store, or from 0."""


def greatest_in_order(sequences: Iterable[int]) -> int:
    """Return the greatest valid sequence number, or 0 if no number is valid."""
    last = 0
    for sequence in sorted(sequences):
        # All remaining numbers are at least as great as this invalid number, so ignore them.
        if sequence - last > WIDEST_GAP:
            break
        last = sequence
    return last


def out_of_order(name: str, sequence: int, limit: int) -> str:
    """Return the message for a checkpoint whose sequence number is ignored."""
    return (
        f"the sequence number of {name}, {sequence}, is more than 2^32 above the greatest valid one, {limit}, "
        "so it is ignored. The checkpoint is listed before all others, and can be loaded by its step"
    )


WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts that torch.compile, DataParallel and DDP, FSDP, and activation checkpointing add to names."""


def unwrapped(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
