"""Write the stores of this folder with the ckstore that Python finds: ``python write_stores.py VERSION [KIND …]``.

For each kind it writes ``VERSION/KIND.tar.xz``, with the store, its remote if it has one, and ``contents.json``, which
lists what they must contain. The list comes from the values that were saved, and not from the store. To write the
stores of another version, put its sources first in PYTHONPATH. The script imports nothing else of the project.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import itertools
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ckstore
from ckstore import CheckpointInfo, Ranks, RetentionPolicy, Store

if TYPE_CHECKING:
    import torch  # imported only where it is needed: a process without it forks much faster

HERE = Path(__file__).resolve().parent
MIB = 2**20
_GROUP, _MEMBERS = 70_000, (70_001, 70_002)
_DEADLINE_S = 120.0


# ------------------------------------------------------------------ what a store must contain


def described(value: Any, name: str = "", memory: dict[int, str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each value of a state. Equal descriptions mean equal bits.

    `memory` has the first tensor in each storage.
    """
    memory = {} if memory is None else memory
    torch: Any = sys.modules.get("torch")  # a process without it has no tensor
    if torch and isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        yield from described([value.indices(), value.values(), [*value.shape]], name, memory)
    elif torch and isinstance(value, torch.Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        shared = in_memory(name, value.untyped_storage().data_ptr(), memory) if data else ""
        yield name, of_elements("torch", str(value.dtype).removeprefix("torch."), value.shape, data) + shared
    elif isinstance(value, np.ndarray):
        yield name, of_elements("numpy", value.dtype.str, value.shape, value.tobytes())
    elif isinstance(value, dict):
        yield name, f"{type(value).__name__} of {len(value)}"
        for key, item in value.items():
            yield from described(item, f"{name}/{key!r}", memory)
    elif isinstance(value, list | tuple | deque):
        yield name, f"{type(value).__name__} of {len(value)}"
        for index, item in enumerate(value):
            yield from described(item, f"{name}/{index}", memory)
    elif isinstance(value, set | frozenset):
        yield name, f"{type(value).__name__} {sorted(map(repr, value))}"
    elif isinstance(value, np.generic):
        kind = "bool" if type(value) is np.bool_ else type(value).__name__  # it is named bool_ in NumPy 1.26
        yield name, f"{kind} {value.dtype.str} {value.tobytes().hex()}"
    else:
        text = repr(value)
        yield (
            name,
            f"{type(value).__name__} {text if len(text) < 100 else _digest(text.encode('ascii', 'backslashreplace'))}",
        )


def of_elements(kind: str, dtype: str, shape: Any, data: bytes) -> str:
    """Return the description of a tensor or an array with these bytes, row-major."""
    return f"{kind} {dtype} {[*shape]} {_digest(data)}"


def in_memory(name: str, place: int, memory: dict[int, str]) -> str:
    """Return which other tensor a tensor shares its storage with, or an empty text."""
    first = memory.setdefault(place, name)
    return "" if first == name else f" in the memory of {first}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def files_in(folder: Path) -> dict[str, str]:
    """Return the description of each file in a folder by its path."""
    return {str(path.relative_to(folder)): _of_file(path) for path in sorted(folder.rglob("*"))}


def _of_file(path: Path) -> str:
    if path.is_symlink():
        return f"symlink to {path.readlink()}"
    if path.is_dir():
        return "directory"
    return f"file {path.stat().st_mode & 0o777:o} {_digest(path.read_bytes())}"


class Book:
    """What the store in a folder must contain, by what was saved into it; the table ``contents.json``.

    Attributes:
        saved: Id of a checkpoint -> its run and step, the description of its values or files, and its metrics.
        listed: RUN@STEP -> id.
        tags, pins: Tag -> id; id -> reason.
        notes: Id -> its notes.
        undoable: Ids of the dropped checkpoints that can be restored.
        facts: What else holds: ``compacted``, ``remote_only`` and ``damaged``, each a list of ids.
        killed: What the last call was to change, if it was killed, see `tests.compat.histories`. It did so or did not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "store"
        self.remote = folder / "remote"
        self.saved: dict[str, dict[str, Any]] = {}
        self.listed: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.pins: dict[str, str] = {}
        self.notes: dict[str, list[str]] = {}
        self.undoable: list[str] = []
        self.facts: dict[str, list[str]] = {}
        self.killed: dict[str, Any] = {}

    def save(self, store: Store, state: Any, step: int, run: str = "main", **options: Any) -> str:
        """Save a state and note it. Another checkpoint of the step is no longer listed."""
        info: CheckpointInfo = store.save(state, step, run, **options)
        self.note(info, {"values": dict(described(state))}, options.get("metrics"))
        self.tags |= dict.fromkeys(options.get("tags", ()), info.id)
        return info.id

    def note(self, info: CheckpointInfo, content: dict[str, Any], metrics: Any = None) -> None:
        """Note a checkpoint that was saved."""
        self.saved[info.id] = {"run": info.run, "step": info.step, "metrics": dict(metrics or {}), **content}
        self.listed[f"{info.run}@{info.step}"] = info.id

    def delete(self, store: Store, name: str) -> None:
        """Delete a checkpoint and note that it can be restored."""
        store.delete(name)
        self.undoable.append(self.listed.pop(name))

    def annotate(self, store: Store, name: str, metrics: dict[str, float], note: str) -> None:
        """Add metrics and a note."""
        id = self.listed[name]
        store.annotate(name, metrics=metrics, note=note)
        self.saved[id]["metrics"] |= metrics
        self.notes.setdefault(id, []).append(note)

    def note_compacted(self, store: Store) -> None:
        """Note which of the listed checkpoints a compaction has chosen."""
        self.facts["compacted"] = [info.id for info in store.checkpoints() if info.compacted]

    def ids(self, *names: str) -> list[str]:
        """Return the ids of listed checkpoints."""
        return [self.listed[name] for name in names]

    def write(self) -> None:
        """Write ``contents.json``."""
        content = {name: value for name, value in vars(self).items() if name not in ("folder", "root", "remote")}
        (self.folder / "contents.json").write_text(json.dumps(content, indent=1, sort_keys=True))

    def read(self) -> None:
        """Read ``contents.json``."""
        vars(self).update(json.loads((self.folder / "contents.json").read_bytes()))


# ------------------------------------------------------------------ states


def weights(step: int, count: int = 20_000) -> dict[str, torch.Tensor]:
    """Return tensors most of whose values are the same at each step."""
    import torch

    numbers = (torch.arange(count) // 64).float()
    numbers[step::100] += step
    return {"w": numbers, "bias": torch.full((5,), float(step)), "fixed": torch.arange(7)}


def trained(step: int) -> dict[str, torch.Tensor]:
    """Return weights of which each value changes a little at each step, also in fewer bits, and new random ones."""
    import torch

    generator = torch.Generator().manual_seed(3)
    full = torch.randn(600, generator=generator)
    for _ in range(step):
        full = full + torch.randn(600, generator=generator) * 1e-4
    counts = torch.arange(10_000) // 50 + step
    rows = (torch.arange(30_000) // 50).short()
    rows[:: 700 + step] += 1
    fresh = torch.randn(200, generator=torch.Generator().manual_seed(step))
    return {"full": full, "low": full.bfloat16(), "half": full.half(), "counts": counts, "rows": rows, "fresh": fresh}


def all_values() -> dict[Any, Any]:
    """Return a state with each kind of value that the format has."""
    import torch

    base = torch.arange(24, dtype=torch.float32)
    return {
        "none": None,
        "booleans": [True, False],
        "integers": (0, -1, 2**53, -(2**53) - 1, 10**40),
        "floats": [0.1, -0.0, 1e-323, 1e300, float("inf"), float("-inf"), float("nan")],
        "complex": 1 + 2j,
        "texts": ["", "é", "\ud800", "a\0b", "x" * 2000],
        "bytes": [b"", b"\0\xff", bytes(range(256)) * 8, bytearray(b"ab")],
        "scalars": [np.float32(0.5), np.int64(-3), np.bool_(True)],
        "containers": [[], (), {}, deque([1, 2], 3), Counter({30: 2}), OrderedDict(b=1, a=2), defaultdict(list, a=[1])],
        "sets": [{1, "a", (2, "b")}, frozenset([None, 0.5]), set()],
        "numbers": [list(range(-9, 2000)), [0.1, -0.0] * 700, [True, False] * 700],
        "more": [decimal.Decimal("1.10"), dt.date(2026, 1, 2), dt.timedelta(-1, 2, 3), pathlib.PurePosixPath("a/b")],
        "moment": dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        "torch": [torch.Size([1, 2]), torch.bfloat16, torch.strided, torch.channels_last, torch.device("cuda:0")],
        "dtypes": {str(kind): torch.arange(6).to(kind) for kind in (torch.int8, torch.float16, torch.complex64)},
        "arrays": {
            "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "words": np.array(["a", "ünï"]),
            "b": np.arange(3, dtype=">i4"),
        },
        "views": {
            "base": base,
            "again": base,
            "window": base[3:9],
            "turned": base.view(4, 6).t(),
            "empty": torch.empty(0, 3),
        },
        "sparse": torch.eye(3).to_sparse().coalesce(),
        7: {-1: torch.ones(1), None: torch.zeros(1), 2.5: 1, (0, "a[b]"): 2, "": {"a.b": torch.ones(2)}},
    }


def write_files(folder: Path) -> Path:
    """Write files of each kind into a new folder, and return it."""
    import torch
    from safetensors.torch import save_file

    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "config.json").write_text('{"layers": 2}')
    (folder / "link").symlink_to("sub/config.json")
    (folder / "empty").touch()
    (folder / os.fsdecode(b"bytes-\xff")).write_bytes(b"not UTF-8")
    torch.save({"w": torch.arange(1000.0)}, folder / "sub" / "model.pt")
    torch.save({"v": torch.arange(9)}, folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(weights(1), folder / "model.safetensors")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o640)
    return folder


# ------------------------------------------------------------------ the kinds


def plain(book: Book) -> None:
    """States, files and several runs."""
    import torch

    with Store.init(book.root, chunk_bytes=MIB) as store:
        book.save(store, all_values(), 1, message="each kind of value", metadata={"seed": 3, "rate": float("nan")})
        for step in (2, 3):
            book.save(store, weights(step), step, metrics={"loss": 1 / step, "nan": float("nan")})
        long = torch.arange(3 * MIB // 4 + 1000, dtype=torch.int32) // 512
        book.save(store, {"chunks": long, "again": long[:7]}, 3, "long.run-2", tags=["chunks"])
        files = write_files(book.folder / "files")
        book.note(store.commit(files, 4), {"files": files_in(files)})
        shutil.rmtree(files)


def blake3(book: Book) -> None:
    """The other algorithm of digests."""
    with Store.init(book.root, chunk_bytes=MIB, hash="blake3") as store:
        for step in range(3):
            book.save(store, weights(step), step, tags=[f"t{step}"])


def packs(book: Book) -> None:
    """Many small tensors and many medium ones, of which some change."""
    import torch

    with Store.init(book.root, chunk_bytes=2 * MIB) as store:
        small = {f"s{i}": torch.full((1 + i % 37,), i % 50) for i in range(300)}
        medium = {f"m{i}": torch.full((MIB // 8 + i,), i) for i in range(17)}
        book.save(store, {**small, **medium}, 1)
        changed = {name: value + 1 for name, value in small.items() if name.endswith("7")}
        book.save(store, {**small, **medium, **changed, "m3": medium["m3"] + 1}, 2)
        book.save(store, {**changed, "m9": medium["m9"]}, 3)


def compacted(book: Book) -> None:
    """Compacted checkpoints, in two runs, one of them with a tag, and one that was deleted."""
    with Store.init(book.root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = 86_400
        for step in range(7):
            book.save(store, trained(step), step)
        for step in range(3):
            book.save(store, weights(step), step, "b")
        store.compact(keep_newest=2)
        store.tag("middle", "main@2")
        book.tags["middle"] = book.listed["main@2"]
        book.delete(store, "main@1")
        book.note_compacted(store)
        store.gc()


def ranks(book: Book) -> None:
    """Parts of two processes: states of their own, and shards by rows and by columns."""
    Store.init(book.root, chunk_bytes=MIB).close()
    (own,) = _on_ranks(book, "own")
    (sharded,) = _on_ranks(book, "sharded")
    with Store.open(book.root) as store:
        book.note(store.info("main@1"), {"values": own})
        book.note(store.info("sharded@2"), {"values": sharded})
        book.save(store, weights(3), 3)


def _on_ranks(book: Book, what: str) -> list[dict[str, str]]:
    """Run `_as_rank` in two processes; return what the first one says the whole state is."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-W", "ignore", __file__, "--rank", str(book.root), what]
    started = [subprocess.Popen([*words, str(rank)], env=environment, stdout=subprocess.PIPE) for rank in range(2)]
    said = [process.communicate(timeout=_DEADLINE_S)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a rank failed: {said}")
    return [json.loads(text) for text in said if text]


def _as_rank(root: str, what: str, rank: int) -> None:
    import torch

    mine = [{"own": torch.arange(5.0) + number, "step": 1, "rank": number} for number in range(2)]
    if what == "own":
        with Store.open(root) as store:
            store.save(mine[rank], 1, ranks=Ranks(rank, 2, "compat"))
        whole: Any = dict(enumerate(mine))
    else:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        from ckstore.integrations import dcp

        dist.init_process_group("gloo", init_method=f"file://{root}/../meeting", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        full = {
            "rows": torch.arange(37 * 12.0).view(37, 12),
            "columns": torch.arange(64 * 48).view(64, 48),
            "one": torch.tensor(3.5),
        }
        placed = {"rows": Shard(0), "columns": Shard(1), "one": Replicate()}
        state = {name: distribute_tensor(full[name], mesh, [place]) for name, place in placed.items()}
        dcp.save(root, {"model": state, "lr": 0.5}, 2, "sharded")
        dist.destroy_process_group()
        whole = {"model": full, "lr": 0.5}
    if rank == 0:
        print(json.dumps(dict(described(whole))))
    else:
        Path(root, "..", "meeting").unlink(missing_ok=True)


def evicted(book: Book) -> None:
    """Checkpoints that only the remote has, one of them dropped, with one that the store has."""
    with Store.init(book.root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = 86_400
        for step in range(4):
            book.save(store, weights(step), step, metrics={"loss": float(step)})
        if is_draft():
            Store.init(book.remote, chunk_bytes=MIB).close()
        else:
            store.compact(["main@0"])
        store.remotes.add("cold", str(book.remote))
        store.push(all=True)
        store.evict([0, 1, 2], "cold")
        book.delete(store, "main@2")
        book.facts["remote_only"] = book.ids("main@0", "main@1")
        book.facts["at_remote"] = [*book.saved]
        book.note_compacted(store)
        store.gc()


def is_draft() -> bool:
    """Whether this is ckstore before a directory could be a remote; a store was its own remote then."""
    return not hasattr(Store, "undo")


def mirror(book: Book) -> None:
    """A mirror with differences, tags, pins, notes, removed checkpoints, marked blobs, and a push that was killed."""
    with Store.init(book.root, chunk_bytes=MIB) as store:
        store.remotes.add("m", str(book.remote))
        store.config.push_deltas = True
        store.config.mirror = "m"
        for step in range(5):
            book.save(store, trained(step), step)
            _wait_for_mirror(store)
        for number in (7, 11):
            book.save(store, {"fresh": trained(number)["fresh"]}, 1, "again", if_exists="replace")
            _wait_for_mirror(store)
        store.tag("best", 3)
        book.tags["best"] = book.listed["main@3"]
        store.pin(2, "figure 3")
        book.pins[book.listed["main@2"]] = "figure 3"
        book.annotate(store, "main@4", {"bleu": 27.5}, "diverges")
        _end_of_mirror(store)
        store.delete("main@0", now=True)
        del book.listed["main@0"]
        store.config.keep_remote = RetentionPolicy(keep_last=2)
        for blob in book.remote.glob("blobs/*/*"):
            os.utime(blob, (1_700_000_000, 1_700_000_000))
        store.remotes.prune("m", grace=60)
        store.config.mirror = None
        for step in itertools.count(5):
            book.save(store, weights(step), step, "other")
            if _kill_push(book, f"other@{step}"):
                break
        store.config.mirror = "m"
        book.facts["at_remote"] = book.ids("main@2", "main@3", "main@4", "again@1")
        book.facts["at_remote"] += book.ids(*(f"other@{number}" for number in range(5, step)))


def _kill_push(book: Book, ref: str) -> bool:
    """Kill a push before its manifest is written; return False if it was too fast."""
    code = "import sys; from ckstore import Store; Store.open(sys.argv[1]).push(sys.argv[2], 'm')"
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(book.root), ref]) as push:
        while push.poll() is None and not any(book.remote.glob("intents/*")):
            pass
        push.kill()
    return any(book.remote.glob("intents/*")) and not any(
        book.remote.glob(f"checkpoints/other/{ref[6:]}/*/manifest.json")
    )


def _wait_for_mirror(store: Store) -> None:
    end = time.monotonic() + _DEADLINE_S
    while True:
        status = store.mirror_status()
        if status is not None and not status.behind:
            return
        if time.monotonic() > end:
            raise RuntimeError(f"the mirror is behind: {status}")
        time.sleep(0.1)


def _end_of_mirror(store: Store) -> None:
    """Wait until the process of the mirror has ended, a minute after its last push."""
    end = time.monotonic() + _DEADLINE_S
    while store.savers() and time.monotonic() < end:
        time.sleep(0.5)


def labels(book: Book) -> None:
    """Tags, pins, notes, evaluations, settings, a superseded checkpoint with a tag, and deleted ones."""
    with Store.init(book.root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = store.config.undo_by_rule_s = 86_400
        for step in range(8):
            book.save(store, weights(step), step, metrics={"loss": 1 / (step + 1)}, message=f"step {step}")
        book.save(store, weights(20), 5, "side", tags=["side", "a.tag-2"])
        for tag, name in (("best", "main@2"), ("first", "main@0")):
            store.tag(tag, name)
            book.tags[tag] = book.listed[name]
        for name, reason, expires in (("main@3", "figure 3", None), ("side@5", "for a while", "7000d")):
            store.pin(name, reason, expires)
            book.pins[book.listed[name]] = reason
        book.annotate(store, "main@4", {"bleu": 27.5}, "diverges")
        book.annotate(store, "main@4", {"loss": 9.0}, "a second note")
        book.undoable.append(book.listed["main@4"])
        book.save(store, weights(30), 4, if_exists="replace")
        if not is_draft():  # a draft replaced no checkpoint that has a tag
            book.save(store, weights(31), 2, if_exists="replace")
        book.delete(store, "main@1")
        store.config.retention = RetentionPolicy(keep_last=50, keep_every=1000, keep_within="700d")
        store.config.retention_by_run = {"sweep-*": RetentionPolicy(keep_last=1)}
        store.verify()
        store.gc()
    if not is_draft():
        _evaluate(book)


def _evaluate(book: Book) -> None:
    """Leave the record of an evaluation that failed, and of one whose process was killed."""
    code = """
import os, sys
from ckstore import Store
with Store.open(sys.argv[1]) as store:
    for number, info in enumerate(store.follow("main", lacking="bleu", timeout_s=0)):
        if number == 1:
            os._exit(77)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(book.root)], check=False, timeout=_DEADLINE_S
    )
    if done.returncode != 77:
        raise RuntimeError(f"the evaluator ended with {done.returncode}")


def damaged(book: Book) -> None:
    """A checkpoint with a damaged blob, which a verification found."""
    with Store.init(book.root, chunk_bytes=MIB) as store:
        for step in range(3):
            book.save(store, weights(step), step)
        directory = next((book.root / "checkpoints" / "main").glob("1*"))
        largest = max((directory / "blobs").iterdir(), key=lambda path: path.stat().st_nlink == 2)
        largest.chmod(0o644)
        with largest.open("r+b") as file:
            file.seek(50)
            file.write(b"damaged")
        largest.chmod(0o444)
        store.verify()
        book.facts["damaged"] = book.ids("main@1")


def group(book: Book) -> None:
    """A store of a group, with checkpoints and a rule of two users; needs root."""
    with tempfile.TemporaryDirectory() as name:  # imports all that is used, which the members may not be able to read
        scratch = Book(Path(name))
        for work in (_as_owner, _as_member):
            work(scratch)
    book.root.mkdir()
    os.chown(book.root, _MEMBERS[0], _GROUP)
    book.root.chmod(0o2770)
    home = book.folder / "homes"
    for number, work in enumerate((_as_owner, _as_member)):
        (home / str(number)).mkdir(parents=True)
        os.chown(home / str(number), _MEMBERS[number], _GROUP)
        book.write()
        os.chown(book.folder / "contents.json", _MEMBERS[number], _GROUP)

        def as_member(number: int = number, work: Callable[[Book], None] = work) -> None:
            os.setgroups([_GROUP])
            os.setgid(_MEMBERS[number])
            os.setuid(_MEMBERS[number])
            os.environ["HOME"] = str(home / str(number))
            os.umask(0o077)
            work(book)
            book.write()

        in_own_process(as_member)
        book.read()
    shutil.rmtree(home)


def in_own_process(work: Callable[[], None]) -> None:
    """Do something in a forked process, which may change this ckstore."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a process failed")


def _as_owner(book: Book) -> None:
    with Store.init(book.root, chunk_bytes=MIB) as store:
        store.config.undo_by_hand_s = 86_400
        book.save(store, weights(1), 1, tags=["best"])
        book.save(store, weights(2), 2)
        store.config.retention = RetentionPolicy(keep_last=20)


def _as_member(book: Book) -> None:
    with Store.open(book.root) as store:
        book.save(store, weights(3), 3)
        book.save(store, weights(4), 4, "other")
        store.pin(2, "by another member")
        book.pins[book.listed["main@2"]] = "by another member"
        book.annotate(store, "main@1", {"bleu": 1.5}, "by another member")
        store.config.retention_by_run = {"other": RetentionPolicy(keep_last=9)}


KINDS: dict[str, Callable[[Book], None]] = {
    made.__name__: made for made in (plain, blake3, packs, compacted, ranks, evicted, mirror, labels, damaged, group)
}
_NOT_OF_DRAFTS = ("mirror",)


def write_archive(kind: str, target: Path) -> None:
    """Write one archive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)  # for the users of a group
        book = Book(folder)
        KINDS[kind](book)
        book.write()
        for path in folder.glob("*/reserve/*"):
            path.unlink()
        pack(folder, target)


def pack(folder: Path, target: Path) -> None:
    """Pack the store, the remote and ``contents.json`` of a folder."""
    # Times of blobs have digits below the second, which only this format of tar keeps.
    command = ["tar", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--sort=name", "--numeric-owner"]
    names = [name for name in ("contents.json", "store", "remote") if (folder / name).exists()]
    packed = subprocess.run([*command, "-C", folder, "-cf", "-", *names], check=True, stdout=subprocess.PIPE)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(packed.stdout, preset=9 | lzma.PRESET_EXTREME))


def main(words: list[str]) -> None:
    """Write the archives of a version, all kinds or some."""
    if words[:1] == ["--rank"]:
        _as_rank(words[1], words[2], int(words[3]))
        return
    version, *wanted = words
    print(f"ckstore in {Path(ckstore.__file__).parent}")
    for kind in wanted or [kind for kind in KINDS if not (is_draft() and kind in _NOT_OF_DRAFTS)]:
        target = HERE / version / f"{kind}.tar.xz"
        write_archive(kind, target)
        print(f"{target.relative_to(HERE)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ckstore.CkstoreWarning)
        main(sys.argv[1:])
