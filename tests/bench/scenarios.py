"""What is measured: each scenario with its baselines, ckstore, and the peers that can do it."""

from __future__ import annotations

import os
from typing import Literal

from tests.bench.acts import (
    ChangingSaves,
    FirstSave,
    KeepsCache,
    Load,
    LoadInto,
    LoadOne,
    MappedLoad,
    Rotation,
    SampledSave,
    SmallSaves,
    SteadySaves,
    UnchangedSave,
    Verify,
)
from tests.bench.backups import Borg, Dvc, Restic
from tests.bench.baselines import Copy, FreshCopy, Fsync, Hash, HashAndWriteFiles, ReadCached, ReadFiles, WriteFiles
from tests.bench.case import Cache, Case, Scenario
from tests.bench.frameworks import DistributedCheckpoint, FileEach, Safetensors, TorchSave
from tests.bench.limits import MapFiles, RestedCopy
from tests.bench.loaders import Orbax, Tensorizer
from tests.bench.ours import Ckstore
from tests.bench.ranks import OfRanks

CORES = len(os.sched_getaffinity(0))
WRITE_BASELINES = ("direct write, 1 file", "direct write, 4 files")
READ_BASELINES = ("direct read, 1 file", "direct read, 4 files")
HASH_BASELINES = ("hash, 1 thread", "hash, 2 threads")
FRESH_BASELINES = ("memcpy to fresh memory", "memcpy to fresh huge pages")
CACHED_BASELINES = ("read, 1 thread", "read, 2 threads")
FAST_WRITE = {1: "direct write, 1 file", 2: "direct write, 2 files", 4: "direct write, 4 files"}
FAST_READ = {1: "direct read, 1 file", 2: "direct read, 2 files", 4: "direct read, 4 files"}
FAST_HASHED = {2: "hash, copy and write, 2 files", 4: "hash, copy and write, 4 files"}
FAST_OURS = {1: "ckstore, 1 thread", 2: "ckstore, 2 threads", 4: "ckstore, 4 threads"}
"""By the number of threads."""
COPY_BASELINES = ("memcpy, 1 thread", "memcpy, 2 threads")


def _write() -> tuple[Case, ...]:
    direct = [WriteFiles(name, direct=True, at_once=n) for name, n in zip(WRITE_BASELINES, (1, 4), strict=True)]
    return (*direct, WriteFiles("buffered write, 1 file", direct=False, at_once=1))


def _read() -> tuple[Case, ...]:
    return tuple(ReadFiles(name, at_once=n) for name, n in zip(READ_BASELINES, (1, 4), strict=True))


def _hash() -> tuple[Case, ...]:
    return tuple(Hash(name, threads=n) for n, name in enumerate(HASH_BASELINES, 1))


def _copy() -> tuple[Case, ...]:
    return tuple(Copy(name, threads=n) for n, name in enumerate(COPY_BASELINES, 1))


def _read_cached() -> tuple[Case, ...]:
    return tuple(ReadCached(name, threads=n) for n, name in enumerate(CACHED_BASELINES, 1))


def _fresh(*, again: bool = False) -> tuple[Case, ...]:
    return tuple(FreshCopy(name, huge=bool(huge), again=again) for huge, name in enumerate(FRESH_BASELINES))


def _writers() -> tuple[Case, ...]:
    return (
        FirstSave(Ckstore()),
        FirstSave(TorchSave()),
        FirstSave(TorchSave(crc32=False)),
        FirstSave(Safetensors()),
        FirstSave(DistributedCheckpoint(1)),
        FirstSave(DistributedCheckpoint(max(2, CORES))),
        FirstSave(Tensorizer()),
        FirstSave(Orbax()),
    )


def _loads(cache: Cache, *, again: bool = False) -> tuple[Case, ...]:
    unverified = Ckstore(verify=False, name="ckstore, unverified")
    dcp = DistributedCheckpoint(max(2, CORES))
    systems = (Ckstore(), unverified, TorchSave(), Safetensors(), dcp, Tensorizer(), Orbax())
    return tuple(Load(system, cache=cache, again=again) for system in systems)


def _maps(*, again: bool = False) -> tuple[Case, ...]:
    return tuple(
        MappedLoad(system, cache="warm", again=again, touch=touch)
        for touch in (False, True)
        for system in (Ckstore(), Safetensors(), TorchSave())
    )


def _small_saves() -> tuple[Case, ...]:
    return (
        Fsync("fsync of 4 KiB, 20 times"),
        *(SmallSaves(system) for system in (Ckstore(), TorchSave(), Safetensors())),
    )


def _chunks() -> list[Ckstore]:
    return [Ckstore(name=f"chunks of {mib} MiB", chunk_bytes=mib * 2**20) for mib in (2, 4, 8, 16, 32, 64, 128)]


def _threads() -> list[Ckstore]:
    return [Ckstore(name=f"{n} threads", threads=n) for n in (1, 2, 3, 4, 6, 8)]


def _limits() -> tuple[Scenario, ...]:
    """What the machine sets as a limit: `make bench BENCH=limit`."""
    rests = (0, 2, 8)
    copies = (
        RestedCopy(f"{name}, {rest_s} s", huge=bool(huge), rest_s=rest_s)
        for huge, name in enumerate(FRESH_BASELINES)
        for rest_s in rests
    )
    loads = (Load(system, cache="warm", rest_s=rest_s) for rest_s in rests for system in (Ckstore(), TorchSave()))
    sizes = (2, 4, 8, 16, 32, 64, 256, 1024)
    return (
        Scenario(
            "limit-fresh",
            "Load into fresh memory that another process used just before, or some seconds ago",
            (*copies, *loads),
            curve=True,
        ),
        Scenario(
            "limit-mapped",
            "Every byte of mapped files of one size, which another program has read",
            (
                *(MapFiles(f"files of {mib} MiB", file_bytes=mib * 2**20) for mib in sizes),
                *(MappedLoad(system, cache="warm", touch=True) for system in (Ckstore(), Safetensors())),
            ),
            curve=True,
        ),
    )


def _curves() -> tuple[Scenario, ...]:
    """What is chosen in the code and not by the user: `make bench BENCH=curve`."""
    packs = [Ckstore(name=f"packed below {mib} MiB", pack_below_bytes=mib * 2**20) for mib in (1, 4, 8, 16, 32)]
    direct = (WriteFiles(f"direct write, {n} files", direct=True, at_once=n) for n in (1, 2, 4, 8))
    mine = [*_chunks(), *_threads()]
    return (
        Scenario(
            "curve-save",
            "First durable save with other chunks, threads and packs",
            (*direct, *(FirstSave(system) for system in (*mine, *packs))),
            curve=True,
        ),
        Scenario(
            "curve-warm",
            "Warm load into existing tensors with other chunks and threads",
            (*_copy(), *_read_cached(), *(LoadInto(system, cache="warm") for system in mine)),
            curve=True,
        ),
        Scenario(
            "curve-cold",
            "Cold load with other chunks and threads",
            (*_read(), *(Load(system, cache="cold") for system in mine)),
            curve=True,
        ),
    )


def _fast() -> tuple[Scenario, ...]:
    """A disk as fast as memory: `make bench BENCH=fast SIZE=1GiB`."""
    ours = [Ckstore(), *(Ckstore(name=name, threads=n) for n, name in FAST_OURS.items())]
    write = (WriteFiles(name, direct=True, at_once=n) for n, name in FAST_WRITE.items())
    hashed = (HashAndWriteFiles(name, at_once=n) for n, name in FAST_HASHED.items())
    read = (ReadFiles(name, at_once=n) for n, name in FAST_READ.items())
    return (
        Scenario(
            "fast-save",
            "First durable save to a block device in memory",
            (*write, *hashed, *_copy(), *_hash(), *(FirstSave(system) for system in ours)),
            place="fast",
            curve=True,
        ),
        Scenario(
            "fast-load",
            "Load into existing tensors from a block device in memory, cold",
            (*read, *_copy(), *_hash(), *(LoadInto(system, cache="cold") for system in ours)),
            place="fast",
            curve=True,
        ),
    )


def _ranks() -> tuple[Scenario, ...]:
    """Four processes: `make bench BENCH=ranks`."""
    told: tuple[tuple[Literal["save", "again", "load"], str], ...] = (
        ("save", "First durable save of a sharded state by four ranks"),
        ("again", "Save of the unchanged state by four ranks"),
        ("load", "Load by four ranks into existing tensors, warm"),
    )
    return tuple(
        Scenario(
            f"ranks-{what}",
            title,
            (*(_write()[:2] if what == "save" else ()), OfRanks("ckstore", what), OfRanks("FileSystemWriter", what)),
            curve=True,
        )
        for what, title in told
    )


def all_scenarios() -> tuple[Scenario, ...]:
    """Return every scenario, in the order in which they run."""
    backups = (Restic, Borg, Dvc)
    dcp = DistributedCheckpoint(1)
    return (
        Scenario(
            "save",
            "First durable save",
            (
                *_write(),
                Fsync("fsync of 4 KiB, 20 times"),
                *_hash(),
                *_writers(),
                *(FirstSave(peer()) for peer in backups),
            ),
            large=True,
        ),
        Scenario(
            "steady",
            "Second to tenth save of a state of which all changes",
            (
                *(
                    WriteFiles(name, direct=True, at_once=n, steady=True)
                    for name, n in zip(WRITE_BASELINES, (1, 4), strict=True)
                ),
                *(SteadySaves(system) for system in (Ckstore(), TorchSave())),
            ),
        ),
        Scenario("nosync", "First save without fsync: the price of durability", _writers()[:7], without_fsync=True),
        Scenario(
            "tmpfs", "First save on tmpfs: the cost without a disk", (*_copy(), *_hash(), *_writers()), place="tmpfs"
        ),
        Scenario(
            "unchanged",
            "Save of an unchanged state",
            (
                *_hash(),
                UnchangedSave(Ckstore()),
                UnchangedSave(TorchSave()),
                UnchangedSave(Safetensors()),
                UnchangedSave(dcp),
                *(UnchangedSave(peer()) for peer in backups),
            ),
        ),
        Scenario(
            "changing",
            "Saves of a state of which 10 % change",
            (
                *_write()[:2],
                *_hash(),
                ChangingSaves(Ckstore()),
                ChangingSaves(Safetensors()),
                ChangingSaves(dcp),
                ChangingSaves(Restic()),
                ChangingSaves(Borg()),
            ),
        ),
        Scenario(
            "small",
            "First save of many small tensors",
            (
                FirstSave(Ckstore(), "small"),
                FirstSave(TorchSave(), "small"),
                FirstSave(Safetensors(), "small"),
                FirstSave(dcp, "small"),
                SampledSave(FileEach(), "small"),
            ),
        ),
        Scenario("small-state", "Saves of 3 MB in 100 tensors, one after another", _small_saves()),
        Scenario(
            "small-state-xfs", "Saves of 3 MB in 100 tensors, one after another, on XFS", _small_saves(), place="xfs"
        ),
        Scenario("load", "Load into fresh memory, warm", (*_copy(), *_fresh(), *_hash(), *_loads("warm"))),
        Scenario(
            "load-again",
            "Load into fresh memory after a load by the same process",
            (*_copy(), *_fresh(again=True), *_hash(), *_loads("warm", again=True)),
        ),
        Scenario("load-cold", "Load into fresh memory, cold", (*_read(), *_fresh(), *_loads("cold"))),
        Scenario("map", "Mapped load, warm", _maps()),
        Scenario("map-again", "Mapped load after a load by the same process", _maps(again=True)),
        Scenario(
            "into",
            "Load into existing tensors, warm",
            (
                *_copy(),
                *_read_cached(),
                *_hash(),
                LoadInto(Ckstore(), cache="warm"),
                LoadInto(Ckstore(verify=False, name="ckstore, unverified"), cache="warm"),
                LoadInto(TorchSave(), cache="warm"),
                LoadInto(Safetensors(), cache="warm"),
                LoadInto(dcp, cache="warm"),
            ),
        ),
        Scenario(
            "one",
            "One tensor of all, cold",
            tuple(
                LoadOne(system, cache="cold") for system in (Ckstore(), TorchSave(), Safetensors(), dcp, Tensorizer())
            ),
        ),
        Scenario(
            "rotate",
            "Keep the last three, space given back",
            tuple(Rotation(system) for system in (Ckstore(), TorchSave(), Safetensors(), dcp)),
        ),
        Scenario(
            "verify",
            "Read and check everything, cold",
            (*_read(), *_hash(), *(Verify(system, cache="cold") for system in (Ckstore(), Restic(), Borg()))),
        ),
        *_curves(),
        *_limits(),
        *_fast(),
        *_ranks(),
        Scenario(
            "cache",
            "Page cache of another file over a save and a load",
            tuple(KeepsCache(system) for system in (Ckstore(), TorchSave(), Safetensors())),
        ),
    )
