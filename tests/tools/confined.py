"""Count the files that name an optional capability outside its room: ``python -m tests.tools.confined [--files]``.

An identifier names a capability if one of its words does: ``remote_names`` and ``NoSuchRemote`` name remotes. Only
identifiers of the code count, in files of ``ckstore``; comments, docstrings and messages do not.
"""

from __future__ import annotations

import argparse
import io
import keyword
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OTHERS = frozenset(
    {
        "nodes_without_shared_store",
        "state_dict_saver",  # a module of torch
        *("lock_shared", "is_shared", "MAP_SHARED", "map_shared", "SHARED_MEMORY"),  # locks and memory
        *("shared_bytes", "run_shared"),  # bytes that several checkpoints have
        "per_device_train_batch_size",  # an argument of transformers
        *("refuse_shared", "_place_shared"),  # storages that several tensors have
    }
)
"""Identifiers with a word of a capability that they do not name."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")


@dataclass(frozen=True)
class Capability:
    """An optional part of ckstore.

    Attributes:
        name: What people call it.
        rooms: The folders and modules below ``ckstore`` that may name it freely.
        words: The words of an identifier that name it.
        most: The number of other files that may name it. Lower it when a file no longer does; never raise it.
    """

    name: str
    rooms: tuple[str, ...]
    words: frozenset[str]
    most: int


CAPABILITIES = (
    Capability(
        "remotes",
        # The others are below remote/: ops/ reads the record and the settings of the mirror, and objects/ knows that
        # only a remote has some blobs.
        ("remote/", "ops/mirror_record.py", "ops/mirror_settings.py", "objects/remote/", "model/remote/"),
        frozenset({"remote", "remotes", "mirror", "mirrored", "elsewhere"}),
        10,
    ),
    Capability(
        "encoded pieces",
        # remote/deltas/ is the part of a remote that stores encoded pieces.
        ("codecs/", "ops/compact/", "objects/encoded.py", "model/manifest/encoding.py", "remote/deltas/"),
        frozenset({"encoded", "encoding", "encodings"}),
        5,
    ),
    # The generators of GPUs are a part of a training, and of no tensor: only `training/` knows them.
    Capability(
        "devices",
        ("tensors/device/", "training/accelerator_generators.py"),
        frozenset({"device", "devices", "cuda", "gpu"}),
        10,
    ),
    Capability("shared filesystems", ("objects/shared/",), frozenset({"shared"}), 8),
    Capability(
        "ranks",
        (
            "ranks/",
            "model/manifest/ranks.py",  # their record in a manifest, which parsing needs
            "training/processes.py",  # asks torch which of the ranks of a training this process is
            "integrations/dcp/group.py",  # the rendezvous of `ranks/` in a process group, which torch alone knows
            "integrations/dcp/replicas.py",  # compares the values of several ranks
            "remote/mirror/nodes_without_shared_store.py",  # implements an interface of `ranks/`
        ),
        frozenset({"rank", "ranks"}),
        9,
    ),
    Capability(
        "saver",
        # The last two are a process that works like a saver, and its start.
        ("saver/", "model/saver/", "remote/mirror/mirror_server.py", "remote/mirror/mirror_process.py"),
        frozenset({"saver", "savers"}),
        6,
    ),
    # Its records are members of the metadata, and their form is that of a run of any program.
    Capability("trackers", ("integrations/trackers.py",), frozenset({"tracker", "trackers", "tracked", "tracking"}), 0),
    Capability("report", ("ops/report/", "model/doctor/"), frozenset({"doctor", "html"}), 5),
)


def identifiers(source: str) -> Counter[str]:
    """Return how often each identifier occurs in the code of a module.

    The argument ``encoding`` of a function that reads or writes text is left out: it is Python's.
    """
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in {tokenize.NL, tokenize.COMMENT}
    ]
    found: Counter[str] = Counter()
    for at, token in enumerate(tokens):
        if token.type != tokenize.NAME or keyword.iskeyword(token.string):
            continue
        if token.string in _OTHERS:
            continue
        if token.string == "encoding" and tokens[at + 1].string == "=" and tokens[at + 2].type == tokenize.STRING:
            continue
        found[token.string] += 1
    return found


def words(identifier: str) -> frozenset[str]:
    """Return the words of an identifier, in lower case."""
    return frozenset(word.lower() for word in _WORD.findall(identifier))


def names_of(found: Counter[str], capability: Capability) -> Counter[str]:
    """Return those of the identifiers that name a capability."""
    return Counter({name: count for name, count in found.items() if not words(name).isdisjoint(capability.words)})


def outside(root: Path) -> dict[str, dict[str, Counter[str]]]:
    """Return for each capability the files outside its room that name it, and by which identifiers."""
    package = root / "ckstore"
    found: dict[str, dict[str, Counter[str]]] = {capability.name: {} for capability in CAPABILITIES}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        every = identifiers(path.read_text(encoding="utf-8"))
        for capability in CAPABILITIES:
            names = names_of(every, capability)
            if names and not file.startswith(capability.rooms):
                found[capability.name][file] = names
    return found


def table(found: dict[str, dict[str, Counter[str]]]) -> Iterable[str]:
    """Give the lines of a table of files and occurrences by capability."""
    yield f"{'capability':<20}{'files':>8}{'most':>8}{'identifiers':>13}{'occurrences':>13}"
    for capability in CAPABILITIES:
        files = found[capability.name]
        names: Counter[str] = sum(files.values(), Counter())
        yield (f"{capability.name:<20}{len(files):>8}{capability.most:>8}{len(names):>13,}{sum(names.values()):>13,}")


def by_file(found: dict[str, dict[str, Counter[str]]]) -> Iterable[str]:
    """Give a line for each capability and file, most occurrences first."""
    for capability, files in found.items():
        for file, names in sorted(files.items(), key=lambda item: -item[1].total()):
            yield f"{capability:<20}{names.total():>5}  {file}: {', '.join(sorted(names))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout of the project")
    parser.add_argument("--files", action="store_true", help="also each file, and the identifiers in it")
    arguments = parser.parse_args()
    everything = outside(arguments.tree)
    sys.stdout.writelines(f"{line}\n" for line in table(everything))
    if arguments.files:
        sys.stdout.writelines(f"{line}\n" for line in ["", *by_file(everything)])
