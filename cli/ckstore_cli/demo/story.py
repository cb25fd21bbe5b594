"""The steps of the demo: train, kill -9 during a save, resume, compare, rotate, fine-tune, export."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError
from ckstore.model.names import key_of
from ckstore.saver.client.savers import savers_of
from ckstore_cli._format import columns

RUN, REFERENCE_RUN, TUNED_RUN = "gpt", "uninterrupted", "lora"
KEPT = 3
DEADLINE_S = 900.0
_LOOK_EVERY_S, _DIE_WITHIN_S, _DIGITS_SHOWN = 0.0005, 30.0, 32
_READER = "import sys, ckstore; a = ckstore.Store(sys.argv[1]).load(sys.argv[2], mmap=True); print(); sys.stdin.read()"


class DemoFailed(CkstoreError):
    """A step of the demo did not have the expected result."""


def run_demo(directory: Path | None, keep: bool, quick: bool) -> int:  # noqa: FBT001 - click's
    """Run the demo in a new, empty or temporary directory. Return the exit status 0, or raise an error."""
    # The demo leaves no process, and no file unless the directory is kept.
    begun_s = time.monotonic()
    with _place(directory, keep=keep) as place:
        say("ckstore demo: train, kill during a save, resume, lose nothing\n")
        say(f"in {place} ({'kept' if keep or directory else 'removed at the end; --keep keeps it'})")
        Demo(place, steps=24 if quick else 80, save_every=4 if quick else 10, layers=2 if quick else 4).run()
        say(f"It took {time.monotonic() - begun_s:.0f} seconds.")
    return 0


class Demo:
    """One run of the demo, in the directory `place`."""

    def __init__(self, place: Path, *, steps: int, save_every: int, layers: int) -> None:
        self.place, self.store = place, place / "store"
        self.steps, self.save_every, self.layers = steps, save_every, layers

    def run(self) -> None:
        """Run all steps and print their results."""
        with Store.init(self.store) as store:
            for warning in store.warnings:
                say(f"note: {warning}")
        saving = ("--save-every", str(self.save_every))
        say(f"1. Train {self.steps} steps, save every {self.save_every} steps, kill -9 during a save", "-")
        step = self.train_until_cut()
        say("2. Open the store again: the interrupted checkpoint does not exist, the others are complete", "-")
        self.show_whole(step)
        say("3. Resume with the same command", "-")
        resumed = self.train(RUN, *saving)
        say("4. Run the same training without interruption, and save it once at the end", "-")
        reference = self.train(REFERENCE_RUN)
        say("5. Compare both after the last step, bit for bit", "-")
        self.prove(resumed, reference)
        say("6. Keep the last three checkpoints and the best, while a process still reads an old one", "-")
        self.rotate()
        say("7. Fine-tune with low-rank adapters, and store the base once", "-")
        self.train(TUNED_RUN, "--base", f"{RUN}@{self.steps}", *saving)
        say("8. List the checkpoints, and export the fine-tuned model as safetensors", "-")
        say(self.ckstore("log"))
        say(self.ckstore("export", f"{TUNED_RUN}@latest", str(self.place / "exported"), "--select", "model"))

    def train(self, run: str, *options: str) -> dict[str, str]:
        """Run the trainer to its end. Return the digests of its final state in memory."""
        report = self.place / f"{run}.json"
        with self._trainer(run, *options, "--report", str(report)) as program:
            if status := program.wait(DEADLINE_S):
                raise DemoFailed(f"the trainer of run {run} should exit with 0, but it exited with {status}")
        return dict(json.loads(report.read_text(encoding="utf-8")))

    def train_until_cut(self) -> int:
        """Start the trainer, kill it during a save and return the step. If a kill is too late, try a later save."""
        saved = 2
        while saved * self.save_every < self.steps:
            with self._trainer(RUN, "--save-every", str(self.save_every)) as program:
                killed = kill_in_a_save(program, self.store, RUN, after_saves=saved)
            if not killed and program.returncode != 0:
                raise DemoFailed(f"the trainer should run until it is killed, but it exited with {program.returncode}")
            done = published(self.store, RUN)
            if killed and (left := saves_in_flight(self.store)):
                step = done[-1] + self.save_every
                say(f"step {step:>4}   KILLED with kill -9 while it was being saved, and the saver with it")
                say(f"staging/ has {', '.join(left)}, checkpoints/ has steps {' '.join(map(str, done))}")
                return step
            say(f"too late: step {done[-1]} was published before the kill, so a later save is killed")
            saved = max(saved + 1, len(done))
        msg = "every save was published before the kill, so none was interrupted"
        raise DemoFailed(msg, hint="try again when the machine is less busy")

    def show_whole(self, cut_step: int) -> None:
        """Open the store and load all listed checkpoints."""
        with Store.open(self.store) as store:
            listed = sorted(info.step for info in store.checkpoints(run=RUN) if store.load(info.name))
        if cut_step in listed:
            raise DemoFailed(f"step {cut_step} should not be listed, since its save was interrupted")
        say(f"the store lists steps {' '.join(map(str, listed))}, and all of them load and verify")
        say(f"staging/ has {', '.join(saves_in_flight(self.store)) or 'no interrupted save any more'}")

    def prove(self, resumed: dict[str, str], reference: dict[str, str]) -> None:
        """Compare the final states, both in memory and as loaded from the store."""
        from ckstore_cli.demo.trainer import digest

        with Store.open(self.store) as store:
            states = [store.load(f"{run}@{self.steps}") for run in (RUN, REFERENCE_RUN)]
        stored = [{name: digest(part) for name, part in state.items()} for state in states]
        rows = [(f"SHA-256, the first {_DIGITS_SHOWN} digits", "KILLED AND RESUMED", "UNINTERRUPTED", "")]
        for part, found in resumed.items():
            verdict = "equal" if found == reference[part] else "DIFFERENT"
            rows.append((part, found[:_DIGITS_SHOWN], reference[part][:_DIGITS_SHOWN], verdict))
        say("\n".join(line.rstrip() for line in columns(rows, "<<<<")))
        if resumed != reference or stored != [resumed, reference]:
            raise DemoFailed(
                "the final states of the resumed and the uninterrupted run should be equal, but they differ"
            )
        say("\nBoth states are loaded unchanged from the store. PROVEN: the kill cost only time.")

    def rotate(self) -> None:
        """Pin the best older checkpoint, keep the last few, and run gc while a process reads the oldest checkpoint."""
        with Store.open(self.store) as store:
            oldest, *others = store.checkpoints(run=RUN)[:-KEPT]
        best = min(others, key=lambda info: info.metrics["loss"])
        say(self.ckstore("pin", best.name, "--reason", "best of the early ones"))
        command = [sys.executable, "-uc", _READER, str(self.store), oldest.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:  # ends with stdin
            if reader.stdout is None or not reader.stdout.readline():
                raise DemoFailed(f"the reader of {oldest.name} should map it, but it ended early")
            say(f"\nprocess {reader.pid} has mapped {oldest.name}, the oldest, which no rule keeps:\n")
            say(self.ckstore("gc", "--keep-last", str(KEPT), "--now"))
        say(f"\nprocess {reader.pid} has ended:\n")
        say(self.ckstore("gc"))
        with Store.open(self.store) as store:
            left = [info.step for info in store.checkpoints(run=RUN)]
            unused = store.gc(dry_run=True)
        if best.step not in left or len(left) != KEPT + 1 or unused.freed_count or unused.held:
            raise DemoFailed(f"only {best.name} and the last {KEPT} should be left, but the steps {left} are left")

    def ckstore(self, *arguments: str, status: int = 0) -> str:
        """Run a command. Return the command line and its output, as shown on a terminal."""
        command = [sys.executable, "-m", "ckstore_cli", *arguments, "--store", str(self.store)]
        plain = {**os.environ, "NO_COLOR": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S, env=plain)
        shown = f"$ ckstore {shlex.join(arguments)}"
        if done.returncode != status:
            raise DemoFailed(f"{shown}: exit status {done.returncode}, wanted {status}\n{done.stdout}{done.stderr}")
        return f"{shown}\n{done.stdout.rstrip()}"

    @contextmanager
    def _trainer(self, run: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start the trainer, which writes to the same stdout, and kill it after the block if it still runs."""
        sizes = ["--run", run, "--steps", str(self.steps), "--layers", str(self.layers)]
        program = subprocess.Popen(
            [sys.executable, "-m", "ckstore_cli.demo.trainer", "--store", str(self.store), *sizes, *options],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches only this process, which then ends the trainer
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # otherwise torch starts threads that only wait
        )
        try:
            yield program
        finally:
            program.kill()  # has no effect if it has ended
            program.wait(_DIE_WITHIN_S)


def kill_in_a_save(program: subprocess.Popen[bytes], store: Path, run: str, *, after_saves: int) -> bool:
    """Kill -9 the saver and `program` while a blob is written, once `run` has `after_saves` checkpoints."""
    # If only the program were killed, its saver would finish the save. This returns False if the program ended before
    # the kill. The caller checks with `saves_in_flight` whether the save was published before the kill.
    deadline_s = time.monotonic() + DEADLINE_S
    savers: list[int] = []
    while program.poll() is None:
        # Count the saves first, so that the save in flight is later than the counted ones.
        if len(published(store, run)) >= after_saves and saves_in_flight(store, unfinished=True):
            _kill(*savers, program.pid)
            killed = program.wait(_DIE_WITHIN_S) == -signal.SIGKILL
            while left := _savers(store):  # including a saver that replaced another one before the program died
                _kill(*left)
                time.sleep(_LOOK_EVERY_S)
            return killed
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{run} should be saved {after_saves} times within {DEADLINE_S:.0f} s")
        savers = savers or _savers(store)  # search before the save to interrupt, since the search is slow
        time.sleep(_LOOK_EVERY_S)
    return False


def saves_in_flight(store: Path, *, unfinished: bool = False) -> list[str]:
    """Return the saves in `staging/` (docs/format/v1.md) that have data, or only those that are not finished."""
    found = []
    for save in _listed(store / "staging"):
        with suppress(FileNotFoundError):  # the save was published meanwhile
            links = [status.st_nlink for blob in _listed(save / "blobs") if (status := blob.stat()).st_size]
            if links and (
                not unfinished or 1 in links
            ):  # a blob with one link is being written, the others are complete
                found.append(save.name)
    return sorted(found)


def published(store: Path, run: str) -> list[int]:
    """Return the published steps of `run`, sorted."""
    keys = (key_of(run, path.name) for path in _listed(store / "checkpoints" / run))
    return sorted({key.step for key in keys if key is not None})


@contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="ckstore-demo-")) if directory is None else directory.absolute()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        msg = f"the demo needs a new or empty directory, and {directory} is not empty"
        raise BadInput(msg, hint="choose another directory, or omit --directory to use a temporary one")
    try:
        yield place
    finally:
        if directory is None and not keep:
            shutil.rmtree(place)


def say(text: str, underline: str = "") -> None:
    """Print `text`, optionally as an underlined heading, and flush, since the trainer writes to the same stdout."""
    print(f"\n{text}\n{underline * len(text)}" if underline else text, flush=True)


def _kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGKILL)


def _savers(store: Path) -> list[int]:
    return [saver.pid for saver in savers_of(str(store.resolve()))]


def _listed(directory: Path) -> Sequence[Path]:
    """Return the entries of a directory. If a save has ended and its directory no longer exists, return none."""
    with suppress(FileNotFoundError):
        return list(directory.iterdir())
    return []
