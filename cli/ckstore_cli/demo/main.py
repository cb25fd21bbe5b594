"""The story that the demo tells: train, kill -9 in a save, resume, rotate, fine-tune, files out and in, prove."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ckstore import Store
from ckstore.errors import BadInput
from ckstore.model.sizes import size_text
from ckstore.model.words import share_text
from ckstore_cli.demo.cut import Leftover, published, saves_in_flight
from ckstore_cli.demo.files import SAVE_EVERY, SAVES, fine_tune, send_out, take_in
from ckstore_cli.demo.programs import Watch, ckstore_command, run_trainer
from ckstore_cli.demo.proof import digests
from ckstore_cli.demo.rotation import rotate
from ckstore_cli.demo.telling import DemoFailed, say, say_heading, say_rows, steps_text

RUN = "gpt"
REFERENCE_RUN = "uninterrupted"
PARTS = {
    "model": "weights",
    "optimizer": "optimizer (AdamW)",
    "scheduler": "schedule",
    "rng": "generators",
    "data": "order of the data",
}
_DIGITS_SHOWN = 32
_STORY = "train, be killed in the middle of a save, resume, lose nothing"
_STORY_OF_RANKS = "train on several ranks, stop, go on with half as many, export, compare"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is.

    Attributes:
        steps: Training steps of each run.
        save_every: Steps from save to save.
        kill_after: Saves that are left in peace.
        layers: Blocks of the model.
    """

    steps: int
    save_every: int
    kill_after: int
    layers: int


FULL = Scale(steps=80, save_every=10, kill_after=3, layers=4)
QUICK = Scale(steps=24, save_every=4, kill_after=2, layers=2)


def run_demo(directory: Path | None, keep: bool, quick: bool, ranks: int | None = None) -> int:  # noqa: FBT001 - click's
    """Run the demo, print its story and return 0, the exit status; a failure is raised.

    No process is left, and no file unless it is to be kept.

    Args:
        directory: Where the store goes: a new or an empty directory, which is kept. None: a
            temporary one.
        keep: Keep the temporary directory too.
        quick: A smaller model and fewer steps.
        ranks: Tell the story of so many processes that train together; None: that of one that is killed.

    Raises:
        BadInput: There is something in `directory`.
        DemoFailed: The resumed run did not end with the state of the uninterrupted one, bit for
            bit; or a trainer failed, or no save could be cut.
    """
    begun_s = time.monotonic()
    with _place(directory, keep=keep) as place:
        say(f"ckstore demo: {_STORY if ranks is None else _STORY_OF_RANKS}\n")
        kept = keep or directory is not None
        say_rows(
            [
                ("in", f"{place} ({'kept' if kept else 'removed at the end; --keep keeps it'})"),
                ("with", f"Python {platform.python_version()}, torch {version('torch')}, 1 thread"),
            ]
        )
        if ranks is None:
            Demo(place, QUICK if quick else FULL).tell()
        else:
            from ckstore_cli.demo import ranks as of_ranks

            of_ranks.tell(place, ranks, of_ranks.QUICK if quick else of_ranks.FULL)
        say(f"It took {time.monotonic() - begun_s:.0f} seconds.")
    return 0


class Demo:
    """One telling, in the directory `place`."""

    def __init__(self, place: Path, scale: Scale) -> None:
        self.place = place
        self.scale = scale
        self.store = place / "store"

    def tell(self) -> None:
        """Tell everything.

        Raises:
            DemoFailed: It did not come out as it should.
        """
        with Store.init(self.store) as store:
            told = [warning.replace(str(store.path), "this place") for warning in store.warnings]
        say_rows([("note", warning) for warning in told])
        every, steps = self.scale.save_every, self.scale.steps
        say_heading(f"1. Train {steps} steps, save every {every}, kill -9 in the middle of a save")
        cut, step = self.train_until_cut()
        say(f"step {step:>4}   KILLED with kill -9 while it was being saved, and the saver with it")
        say_heading("2. What the kill left behind")
        self.show_leftover(cut, step)
        say_heading("3. Open the store")
        self.show_whole(step)
        say_heading("4. Resume: the same command again")
        resumed = self.train(RUN, every)
        say_heading("5. The same training without interruption, saved once at its end")
        reference = self.train(REFERENCE_RUN, 0)
        say_heading("6. The log")
        say(ckstore_command(["log", "--store", str(self.store)]))
        say_heading("7. What each save cost")
        self.show_costs()
        say_heading("8. Keep the last three and the best, while a process still reads an old one")
        rotate(self.store, RUN)
        say_heading("9. Fine-tune with LoRA: the base stays as it is")
        files = self.place / "trainer" / f"checkpoint-{SAVES * SAVE_EVERY}"
        fine_tuned = fine_tune(self.store, f"{RUN}@{self.scale.steps}", self.scale.layers, files)
        say_heading("10. Out: the fine-tuned model as safetensors")
        send_out(self.store, fine_tuned, self.place / "exported")
        say_heading("11. In: the files that the trainer itself has written")
        take_in(self.store, files, self.place / "checked-out")
        say_heading("12. Proof: is everything the same after the last step, bit for bit?")
        self.prove(resumed, reference)

    def train(self, run: str, save_every: int) -> dict[str, str]:
        """Run the trainer to its end; return the digests of what it then had in memory."""
        report = self.place / f"{run}.json"
        status = run_trainer([*self._arguments(run, save_every), "--report", str(report)])
        if status != 0:
            raise DemoFailed(f"the trainer of run {run} should exit with 0, it exited with {status}")
        told: dict[str, str] = json.loads(report.read_text(encoding="utf-8"))
        return told

    def train_until_cut(self) -> tuple[Leftover, int]:
        """Start the trainer and kill it in a save; again, in a later save, if that came too late.

        Returns:
            What is left of the save, and its step.
        """
        every, peaceful = self.scale.save_every, self.scale.kill_after
        while peaceful * every < self.scale.steps:
            watch = Watch(self.store, RUN, after_saves=peaceful)
            status = run_trainer(self._arguments(RUN, every), watch)
            if status not in (None, 0):
                raise DemoFailed(f"the trainer should run until it is killed, it exited with {status}")
            done, left = published(self.store, RUN), saves_in_flight(self.store)
            if status is None and left:
                return left[0], done[-1] + every
            say(f"too late: step {done[-1]} was published before the kill; again, in a later save")
            peaceful = max(peaceful + 1, len(done))
        raise DemoFailed(
            "every save was published before the kill came, so none could be shown cut",
            hint="try again when the machine is less busy",
        )

    def show_leftover(self, cut: Leftover, cut_step: int) -> None:
        """Say what is in the store before a process opens it."""
        missing = "not yet renamed to its place" if cut.sealed else "no manifest yet"
        blobs = "1 blob" if cut.blobs == 1 else f"{cut.blobs} blobs"
        told = f"{blobs} ({cut.unfinished} unfinished), {size_text(cut.blob_bytes)}, {missing}"
        rows = [
            ("in staging/", f"{cut.name}: {told}"),
            ("in checkpoints/", f"{steps_text(published(self.store, RUN))}; no step {cut_step}"),
        ]
        say_rows(rows)

    def show_whole(self, cut_step: int) -> None:
        """Open the store and load everything that it lists."""
        with Store.open(self.store) as store:
            listed = sorted(info.step for info in store.checkpoints(run=RUN))
            for step in listed:
                store.load(f"{RUN}@{step}")
        if cut_step in listed:
            raise DemoFailed(f"step {cut_step} should not be listed, since its save was cut")
        left = ", ".join(save.name for save in saves_in_flight(self.store))
        say_rows(
            [
                ("it lists", f"{steps_text(listed)}: whole checkpoints only"),
                ("it loads", "each of them, every byte compared with its digest"),
                ("in staging/", left or "nothing any more"),
            ]
        )

    def show_costs(self) -> None:
        """Print what each save took of the disk."""
        with Store.open(self.store) as store:
            infos = sorted(store.checkpoints(), key=lambda info: info.order)
        sizes = [(info.logical_bytes, info.new_bytes, info.reused_bytes) for info in infos]
        holds, new, reused = zip(*sizes, strict=True)
        sizes.append((sum(holds), sum(new), sum(reused)))
        rows = [
            (name, *map(size_text, each), share_text(each[1], each[0]))
            for name, each in zip([*(info.name for info in infos), "all"], sizes, strict=True)
        ]
        head = ("CHECKPOINT", "HOLDS", "NEW", "REUSED", "NEW SHARE")
        say_rows([head, *rows], "<>>>>")

    def prove(self, resumed: dict[str, str], reference: dict[str, str]) -> None:
        """Compare the last states: as they were in memory, and as the store gives them back.

        Raises:
            DemoFailed: Something differs.
        """
        with Store.open(self.store) as store:
            last = self.scale.steps
            stored = [digests(store.load(f"{run}@{last}")) for run in (RUN, REFERENCE_RUN)]
        say("SHA-256 of names, types, shapes and bits of what was in the memory of the trainers")
        say(f"(compared in full, the first {_DIGITS_SHOWN} digits shown):\n")
        rows = [("", "KILLED AND RESUMED", "UNINTERRUPTED", "")]
        for part, said in PARTS.items():
            mine, other = resumed[part], reference[part]
            verdict = "equal" if mine == other else "DIFFERENT"
            rows.append((said, mine[:_DIGITS_SHOWN], other[:_DIGITS_SHOWN], verdict))
        say_rows(rows)
        as_loaded = stored == [resumed, reference]
        say(f"\nThe store gives back both as they were in memory: {'yes' if as_loaded else 'NO'}")
        if resumed != reference or not as_loaded:
            raise DemoFailed("the resumed run should end like the uninterrupted one, it did not")
        say("PROVEN: the kill cost nothing but time.")

    def _arguments(self, run: str, save_every: int) -> list[str]:
        options = {
            "--store": self.store,
            "--run": run,
            "--steps": self.scale.steps,
            "--layers": self.scale.layers,
            "--save-every": save_every,
        }
        return [str(part) for option in options.items() for part in option]


@contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            msg = f"the demo needs a new or empty directory, and {directory} is not empty"
            raise BadInput(msg, hint="choose another one, or none for a temporary one")
        yield directory.absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="ckstore-demo-"))
    try:
        yield temporary
    finally:
        if not keep:
            shutil.rmtree(temporary)
