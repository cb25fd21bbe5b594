"""What holds for every test: a clean environment, no descriptor left open, reproducible drawing."""

import gc
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before any of them is imported: under python -O only assertions that pytest has rewritten are left.
_rooms = [f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir()]
pytest.register_assert_rewrite(*(room for room in _rooms if room not in sys.modules))

from ckstore.fs import holders  # noqa: E402
from ckstore.ops import notices  # noqa: E402
from tests.support.descriptors import open_below  # noqa: E402
from tests.support.loopfs import Kind, loop_filesystem  # noqa: E402
from tests.support.memory import memory_folder  # noqa: E402
from tests.support.own_processes import own_processes  # noqa: E402
from tests.support.representing import representatives_of  # noqa: E402
from tests.support.requirements import CRASH_FULL, require_c_compiler  # noqa: E402
from tests.support.warm_bin import warm_bin  # noqa: E402

# Before anything imports torch; `make` sets it too. Workers that each use every core get slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_START = str(Path(__file__).parent / "support" / "start")
if _START not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_START, os.environ.get("PYTHONPATH"))))

# No deadlines: a test here fsyncs, and how long that takes is the disk's affair.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_EXAMPLES = 200 if CRASH_FULL else 15
settings.register_profile("default", deadline=None, max_examples=_EXAMPLES, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=_EXAMPLES,
    suppress_health_check=_SLOW_IS_FINE,
    derandomize=True,  # a change must not fail because of what an earlier one drew
    print_blob=True,
)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2000,
    suppress_health_check=_SLOW_IS_FINE,
    print_blob=True,
)
settings.register_profile("mutants", settings.get_profile("default"), max_examples=40)
settings.register_profile("odd", settings.get_profile("ci"), max_examples=5)  # for the odd environments
# Random draws are for `make crash` and the nightly profile: a fresh clone must not fail by what it happens to draw.
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default" if CRASH_FULL else "ci"))

_MEMORY_LEAST_BYTES = 6 * 2**30


class _Everything(set[str]):
    def __contains__(self, _: object) -> bool:
        return True


# Tests may be in memory, which is not durable: this process has warned of that, and those that it starts do not.
# `test_infos.py` tries both.
notices._warned_not_durable = _Everything()
_given = os.environ.get("PYTHONWARNINGS")
os.environ["PYTHONWARNINGS"] = f"{f'{_given},' if _given else ''}ignore:a power cut may lose checkpoints in this store"


# Warnings of torch before 2.13 about its own calls, in one process without a group, and in `SequentialLR`.
_WARNINGS_OF_OLD_TORCH = (
    "TypedStorage is deprecated",
    "torch.distributed is unavailable",
    "The epoch parameter in `scheduler.step",
)


def pytest_configure(config: pytest.Config) -> None:
    """Have `tmp_path` in memory where there is enough, unless ``--basetemp`` says where: tests do 60,000 fsyncs."""
    torch_version = importlib.metadata.version("torch").split(".")
    if tuple(map(int, torch_version[:2])) < (2, 13):
        for message in _WARNINGS_OF_OLD_TORCH:
            config.addinivalue_line("filterwarnings", f"ignore:{message}:UserWarning")
    memory = memory_folder(_MEMORY_LEAST_BYTES)
    if config.option.basetemp is None and memory is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each law: `make crash` draws more for it."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("property")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make crash` runs; deal the slow tests out to the beginning of what each worker is given first.

    So none of them begins last.
    """
    if not CRASH_FULL and not any("::" in argument for argument in config.args):
        representing = representatives_of(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in representing])
        items[:] = [item for item in items if item in representing]
    workers = int(getattr(config, "workerinput", {"workercount": 1})["workercount"])
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    others = [item for item in items if item.get_closest_marker("slow") is None]
    ends = [len(others) * worker // workers for worker in range(workers + 1)]
    if workers > 1:
        items[:] = [
            item
            for worker in range(workers)
            for item in (*slow[worker::workers], *others[ends[worker] : ends[worker + 1]])
        ]


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later look for garbage; from now on it is looked for as often as usual."""
    gc.freeze()
    gc.set_threshold(700, 10, 10)


# What the outside may tell the tests; every other CKSTORE_ variable would change what is tested.
_KEPT = ("CKSTORE_CI", "CKSTORE_CRASH", "CKSTORE_CRASH_REPORT", "CKSTORE_CRASH_SEED", "CKSTORE_ODD", "CKSTORE_SOAK_S")
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own home, own working directory (`tmp_path`), no variable that ckstore or click reads."""
    for name in list(os.environ):
        if name.startswith(("CKSTORE_", "_CKSTORE_", "XDG_")) and name not in _KEPT:
            monkeypatch.delenv(name)
    for name in _TERMINAL:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / ".home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, for `_no_descriptor_left`."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def _no_descriptor_left(request: pytest.FixtureRequest, tmp_path: Path, _clean_environment: None) -> Iterator[None]:
    """Fail a test that leaves a file or directory below its `tmp_path` open.

    What is below `journaled_dir` is watched as well. A test that failed anyway is left alone: its
    traceback keeps alive whatever was open. A test that leaks on purpose says so with
    ``@pytest.mark.usefixtures("descriptors_may_leak")``.
    """
    watched = [tmp_path]
    if "journaled_dir" in request.fixturenames:
        watched.append(request.getfixturevalue("journaled_dir"))
    before = {entry for folder in watched for entry in open_below(folder).items()}

    yield

    if "descriptors_may_leak" in request.fixturenames or request.node.stash.get(_failed, False):
        return

    def left() -> set[tuple[int, str]]:
        return {entry for folder in watched for entry in open_below(folder).items()} - before

    if left():
        gc.collect()  # a cycle may hold one that nothing else holds; slow, so only now
    if found := left():
        listed = ", ".join(f"{fd}: {path}" for fd, path in sorted(found))
        pytest.fail(f"the test left descriptors open: {listed}")


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A new empty directory where temporary files usually are, for what memory does otherwise than a disk."""
    with tempfile.TemporaryDirectory(prefix="ckstore-test-") as name:
        yield Path(name).resolve()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As pytest's; what measures has one on the disk."""
    if request.node.get_closest_marker("bench") is None:
        return tmp_path
    path: Path = request.getfixturevalue("disk_path")
    return path


@pytest.fixture
def descriptors_may_leak() -> None:
    """Switch the check for open descriptors off for one test."""


@pytest.fixture(autouse=True)
def _only_own_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a gc of this process ask only what the test has started for open files, unless that is the subject.

    A test of holders says so with ``@pytest.mark.usefixtures("every_process")``.
    """
    if "every_process" not in request.fixturenames:
        monkeypatch.setattr(holders, "_pids", partial(own_processes, os.getpid()))


@pytest.fixture
def every_process() -> None:
    """Let a gc look at all processes of the machine, for one test."""


@pytest.fixture
def steady_clock() -> None:
    """For a test of what ends at a time: under the clock that jumps (make odd) it may end at once, or never."""
    if os.environ.get("CKSTORE_ODD") == "clock":
        pytest.skip("asserts what the wall clock says, which jumps here")


@pytest.fixture
def read_once() -> None:
    """For a test in which a read changes what the next one finds: on read-only views (make odd) there are two."""
    if os.environ.get("CKSTORE_ODD") == "read-only":
        pytest.skip("what is read changes by being read, and here everything is read twice")


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """A folder with a `python` and a `ckstore` that start in hundredths of a second, torch imported."""
    require_c_compiler()
    with warm_bin("torch", "ckstore", "ckstore_cli.app") as folder:
        yield folder


@pytest.fixture
def make_filesystem(disk_path: Path) -> Iterator[Callable[[Kind, int], Path]]:
    """Give a function `(kind, size_mib) -> mountpoint`; unmounted after the test. Needs root."""
    with ExitStack() as mounts:

        def make(kind: Kind, size_mib: int) -> Path:
            mount: AbstractContextManager[Path] = loop_filesystem(kind, size_mib, disk_path)
            return mounts.enter_context(mount)

        yield make


@pytest.fixture(scope="session")
def _journaled_filesystem() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="ckstore-test-") as folder,
        loop_filesystem("ext4", 1024, Path(folder).resolve()) as mountpoint,
    ):
        yield mountpoint


@pytest.fixture(scope="session")
def journaled_dir(_journaled_filesystem: Path) -> Path:
    """An ext4 with a journal, 1 GiB, made once a session (a worker): a place that keeps promises.

    All tests of the session share it: work in `journaled_tmp_path`, which is emptied afterwards.
    """
    return _journaled_filesystem


@pytest.fixture
def journaled_tmp_path(journaled_dir: Path) -> Iterator[Path]:
    """A new empty directory on `journaled_dir`; removed after the test."""
    number = 0
    while (path := journaled_dir / f"test-{number}").exists():
        number += 1
    path.mkdir()
    yield path
    shutil.rmtree(path)
