"""Uses a spoiled store in every way there is, in a process of its own with a bound on its memory and its time."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, CkstoreWarning
from ckstore.model.checkpoint.annotations import parse_annotations
from ckstore.model.checkpoint.mark import parse_mark
from ckstore.model.checkpoint.pins import parse_pin
from ckstore.model.manifest.parse import parse_encoding, parse_manifest
from ckstore.model.settings.retention import RetentionPolicy as Policy
from ckstore.model.settings.settings import parse_config, parse_settings
from tests.faults.states import fingerprint
from tests.hostile.places import COMPACTED, DOCUMENTS, GOOD, SPOILED, spoil_document, spoil_names, state
from tests.support.checkpoint_dirs import path_in_store
from tests.support.look import files_of, leaves_of
from tests.support.plans import plan_of

MORE_MEMORY_BYTES = 192 * 2**20
"""What a process may take beyond what it has: a document of some kilobytes must not make it take more."""
_TIME_S = 300
_CASES_OF_A_PROCESS = 500


def _policy(data: bytes) -> None:
    stored = parse_config(data, "config.json").get("retention")
    if stored is not None:
        Policy.from_json(stored, "config.json")


PARSERS: dict[str, Callable[[bytes], object]] = {
    "manifest": lambda data: parse_manifest(data, where="manifest.json"),
    "manifest of files": lambda data: parse_manifest(data, where="manifest.json"),
    "encoding": lambda data: parse_encoding(data, where="manifest.json"),
    "manifest of a compacted one": lambda data: parse_manifest(data, where="plain.json"),
    "annotations": lambda data: parse_annotations(data, "annotations.json"),
    "mark": lambda data: parse_mark(data, "damaged.json"),
    "pin": lambda data: parse_pin("figure", data, "figure.json"),
    "config": _policy,
    "store": lambda data: parse_settings(data, "store.json"),
}


def use(folder: Path, good: str) -> list[str]:
    """Use the store in `folder` in every way; return what is wrong: an error of another kind, or a change outside."""
    store_path, wrong = folder / "store", list[str]()

    def tried(what: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except CkstoreError:
            return None
        except BaseException:
            wrong.append(f"{what}: {traceback.format_exc()}")
            return None

    for readonly in (True, False):
        store = tried("open", partial(Store.open, store_path, readonly=readonly))
        if store is None:
            continue
        found = tried("the good one", partial(_print_of, store))
        if found != good:
            wrong.append(f"{GOOD} does not load any more, readonly={readonly}")
        for what, act in _uses(store, folder / f"out-{readonly}"):
            tried(f"{what}, readonly={readonly}", act)
        if not readonly:
            found = tried("the good one", partial(_print_of, store))
            if found != good:
                wrong.append(f"{GOOD} does not load after all was tried")
    return wrong


def _print_of(store: Store) -> Any:
    return fingerprint(store.load(GOOD))


def _uses(store: Store, out: Path) -> list[tuple[str, Callable[[], Any]]]:
    policy = RetentionPolicy(keep_last=1)
    uses: list[tuple[str, Callable[[], Any]]] = [
        ("list", store.checkpoints),
        ("warnings", lambda: store.warnings),
        ("latest", store.latest),
        ("latest valid", lambda: store.latest(valid=True)),
        ("tags", store.tags),
        ("pins", store.pins),
        ("policy", lambda: store.config.retention),
        ("plan", lambda: plan_of(store)),
        ("plan keep last", lambda: plan_of(store, policy)),
        ("usage", store.du),
        ("diff", lambda: store.diff(GOOD, SPOILED)),
    ]
    for ref in (SPOILED, "files@3", "best", "main@5", COMPACTED):
        uses += [
            (f"info {ref}", lambda ref=ref: store.info(ref)),  # type: ignore[misc] # mypy infers no default
            (f"leaves {ref}", lambda ref=ref: leaves_of(store, ref)),  # type: ignore[misc]
            (f"files {ref}", lambda ref=ref: files_of(store, ref)),  # type: ignore[misc]
            (f"load {ref}", lambda ref=ref: store.load(ref)),  # type: ignore[misc]
            (f"map {ref}", lambda ref=ref: store.load(ref, mmap=True)),  # type: ignore[misc]
            (f"checkout {ref}", lambda ref=ref: store.checkout(ref, out / ref.replace("@", "-"))),  # type: ignore[misc]
        ]
    uses.append(("verify", store.verify))
    if not store._context.readonly:
        uses += [
            ("annotate", lambda: store.annotate(SPOILED, note="more")),
            ("tag", lambda: store.tag("again", SPOILED)),
            ("save", lambda: store.save(state(9), step=9)),
            ("delete", lambda: store.delete("main@9")),
            ("compact", partial(store.compact, run="old")),
            ("gc", store.gc),
        ]
    return uses


def _bounded(work: Callable[[], list[str]]) -> list[str]:
    """Do `work` in a fork with bounds on its memory and time; return what it says, or how it ended."""
    (reading, writing), said = os.pipe(), b""
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            signal.alarm(_TIME_S)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + MORE_MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            told = "\n".join(work())
            os.write(writing, told.encode("utf-8", "backslashreplace")[:60_000])
            os._exit(0)
        except BaseException:
            os.write(writing, traceback.format_exc().encode("utf-8", "backslashreplace")[:60_000])
        finally:
            os._exit(1)
    os.close(writing)
    while part := os.read(reading, 65536):
        said += part
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = [] if code == 0 else [f"it ended by {code}" + (", it hangs" if code == -signal.SIGALRM else "")]
    return ended + ([said.decode()] if said else [])


def store_case(template: Path, folder: Path, seed: int, good: str) -> list[str]:
    """Spoil a copy of the store as drawn from `seed`, use it, and return what is wrong."""
    draw = random.Random(seed)
    shutil.copytree(template, folder / "store", symlinks=True)
    outside = folder / "outside"
    (outside / "precious").mkdir(parents=True)
    (outside / "precious" / "file").write_text("not yours")
    if draw.random() < 0.5:
        what = draw.choice(list(DOCUMENTS))
        spoil_document(folder / "store", what, draw)
    else:
        what = spoil_names(folder / "store", draw)
    before = _precious(outside)

    def work() -> list[str]:
        warnings.simplefilter("ignore", CkstoreWarning)
        return use(folder, good)

    wrong = _bounded(work)
    if _precious(outside) != before:
        wrong.append(f"something outside the store was changed: {before} {_precious(outside)}")
    strange = {entry.name for entry in folder.iterdir()} - {"store", "outside", "out-True", "out-False"}
    if strange:
        wrong.append(f"something was made outside the store: {sorted(strange)}")
    shutil.rmtree(folder)
    return [f"seed {seed}, {what}: {one}" for one in wrong]


def _precious(outside: Path) -> dict[str, str]:
    """What no act may touch; what of the store a symlink brought there is the store's own."""
    return {str(path): path.read_text() for path in (outside / "precious").rglob("*") if path.is_file()}


def parser_case(template: Path, folder: Path, seed: int) -> tuple[str, str, str]:
    """Give a spoiled document to its parser; return its name, what was said, and what is wrong."""
    draw = random.Random(seed)
    name = draw.choice(list(DOCUMENTS))
    path = path_in_store(folder, DOCUMENTS[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path_in_store(template, DOCUMENTS[name]), path)
    data = spoil_document(folder, name, draw)
    try:
        PARSERS[name](data)
    except CkstoreError as error:
        return name, "refused" if str(error) else "nothing", "" if str(error) else f"seed {seed}: no words"
    except BaseException:
        return name, "raised", f"seed {seed}, {name}: {traceback.format_exc()}"
    return name, "read", ""


def parser_cases(template: Path, folder: Path, seeds: range) -> tuple[dict[str, int], list[str]]:
    """Run many cases, some in each of several processes with bounds; return how many were refused and read, and more.

    Returns:
        Counts, and what is wrong.
    """
    counts, wrong = {"refused": 0, "read": 0}, list[str]()
    for start in range(0, len(seeds), _CASES_OF_A_PROCESS):
        more, problems = _some_parser_cases(template, folder, seeds[start : start + _CASES_OF_A_PROCESS])
        wrong += problems
        for how, count in more.items():
            counts[how] += count
    return counts, wrong


def _some_parser_cases(template: Path, folder: Path, seeds: range) -> tuple[dict[str, int], list[str]]:
    def work() -> list[str]:
        counts = {"refused": 0, "read": 0, "raised": 0, "nothing": 0}
        wrong = []
        for seed in seeds:
            _, how, problem = parser_case(template, folder, seed)
            counts[how] += 1
            if problem:
                wrong.append(problem)
        return [f"counts {counts['refused']} {counts['read']}", *wrong[:20]]

    first, *wrong = "\n".join(_bounded(work)).split("\n", 1)
    if not first.startswith("counts "):
        return {"refused": 0, "read": 0}, [first, *wrong]
    refused, read = map(int, first.split()[1:])
    return {"refused": refused, "read": read}, wrong
