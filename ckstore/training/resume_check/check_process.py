"""Run the task of one fresh process of the check: make the loop, train, record, and save or restore."""

from __future__ import annotations

import faulthandler
import importlib.util
import itertools
import json
import os
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ckstore.errors import BadInput
from ckstore.store import Store
from ckstore.tensors.kinds import is_tensor
from ckstore.tensors.refusals import type_name
from ckstore.training.capture import capture
from ckstore.training.restore import restore
from ckstore.training.resume_check.loop import EPOCH_END, Loop
from ckstore.training.resume_check.observing import Observer, tensors_apart
from ckstore.training.resume_check.records import RESUMED, Ignored, Mismatch, Observation, Tolerance, compare, unused
from ckstore.training.resume_check.task import DOING, RESULT, Task
from ckstore.training.resume_check.tensor_distance import distance

_END = object()
_TENSORS = "tensors"
_OWN = f"{Path(__file__).parent}{os.sep}"


class _Worker:
    """Runs a loop and records it.

    Attributes:
        result: The result of the process as a JSON document.
    """

    def __init__(self, task: Task) -> None:
        self.result: dict[str, Any] = {}
        self._task = task
        self._tolerance = Tolerance(task.rtol, task.atol)
        self._records: list[Observation] = []
        expected = json.loads(Path(task.expected).read_text(encoding="utf-8"))["records"] if task.expected else []
        reference = [*map(Observation.from_json, expected)]
        self._expected = reference[task.first :]
        self._ignored = Ignored(task.ignored, unused(reference))

    def run(self) -> None:
        """Run the whole task."""
        task = self._task
        self._doing("while its module was imported")
        _seed(task.seed)
        make_loop = task.factory.load()
        self._doing("while the loop was made")
        _seed(task.seed)
        loop = make_loop()
        if not isinstance(loop, Loop):
            msg = f"{task.factory} must return a Loop, got {type_name(type(loop))}"
            raise BadInput(msg, hint="return ckstore.training.Loop(train, parts)")
        observer = Observer(loop)
        if task.saved is None:
            is_over = self._add(observer, observer.record("start", 0))
        else:
            is_over = self._resume(loop, observer, Observation.from_json(task.saved))
        if not is_over:
            self._train(loop, observer)

    def finish(self) -> dict[str, Any]:
        """Return the records and the outcome."""
        return {**self.result, "records": [one.to_json() for one in self._records]}

    def _doing(self, what: str) -> None:
        # The process that waits for this one reads the file if this one is killed.
        self.result["doing"] = what
        Path(self._task.folder, DOING).write_text(what, encoding="utf-8")

    def _resume(self, loop: Loop, observer: Observer, saved: Observation) -> bool:
        self._doing("while it was restored")
        with Store.open(self._task.restores) as store:
            if loop.load is not None:
                report = loop.load(store)
            else:
                report = restore(store, "latest-valid", **loop.parts)
                loop.extra.clear()
                loop.extra.update(report.extra)
        self.result["inexact"] = None if report is None else [*report.inexact]
        self._records.append(observer.record(RESUMED, saved.step))
        # Use no tolerance. The restored state must equal the saved one, because no kernel ran in between.
        found = compare(saved, self._records[0], 0, tolerance=Tolerance(), ignored=self._ignored)
        return self._is_over(observer, found)

    def _train(self, loop: Loop, observer: Observer) -> None:
        step = self._records[-1].step
        self._doing(f"in step {step + 1}")
        # A generator function yields step by step; any other function is called once for each step.
        first = loop.train()
        calls = itertools.chain([first], (loop.train() for _ in itertools.count()))
        results = first if isinstance(first, Iterator) else calls
        while (result := next(results, _END)) is not _END:
            frame = getattr(results, "gi_frame", None)
            variables = {} if frame is None else dict(frame.f_locals)
            if isinstance(result, str) and result == EPOCH_END:
                record = observer.record(EPOCH_END, step, variables=variables)
            else:
                step += 1
                record = observer.record("step", step, result, variables=variables)
            if self._add(observer, record):
                return
            index = str(self._task.first + len(self._records) - 1)
            if index in self._task.saves:
                self._doing(f"while it was saved after step {step}")
                with Store.init(self._task.saves[index]) as store:
                    if loop.save is None:
                        store.save(capture(**loop.parts, extra=loop.extra), step=step)
                    else:
                        loop.save(store)
                saved = observer.record("saved", step, variables=variables)
                self.result.setdefault("saved", {})[index] = saved.to_json()
            self._doing(f"in step {step + 1}")
        self._add(observer, Observation("end", step))

    def _add(self, observer: Observer, record: Observation) -> bool:
        """Keep a record, and return whether the task ends with it."""
        task = self._task
        is_last = self._is_last(record)
        if is_last and task.names is not None:
            self.result["numbers"] = self._distances(observer, task.names)
        elif is_last and task.expected and task.tensors:
            record = self._with_far_tensors(observer, record)
        elif is_last and not task.expected and task.keeps:
            _keep(observer.tensors(), task.keeps)
        self._records.append(record)
        at = len(self._records) - 1
        found = None
        if at < len(self._expected):
            found = compare(self._expected[at], record, at, tolerance=self._tolerance, ignored=self._ignored)
        return self._is_over(observer, found) or is_last

    def _is_last(self, record: Observation) -> bool:
        task = self._task
        if task.last is not None:
            return task.first + len(self._records) == task.last
        if record.position == "end":
            return True
        if record.step < task.steps or task.epoch_steps is None:
            return record.step >= task.steps
        end = next((one.step for one in [*self._records, record] if one.position == EPOCH_END), None)
        return not task.needs_epoch if end is None else record.step >= end + task.epoch_steps

    def _is_over(self, observer: Observer, found: Mismatch | None) -> bool:
        if found is not None and self._task.keeps:
            _keep(observer.tensors(found.names), self._task.keeps)
        return found is not None

    def _with_far_tensors(self, observer: Observer, record: Observation) -> Observation:
        far = {
            name: numbers
            for name, numbers in self._distances(observer, None).items()
            if not self._tolerance.covers(numbers["largest_absolute"], numbers["size"])
        }
        return replace(record, far=far)

    def _distances(self, observer: Observer, names: tuple[str, ...] | None) -> dict[str, dict[str, Any]]:
        with Store.open(self._task.tensors, readonly=True) as store:
            kept = store.load("latest")[_TENSORS]
        return tensors_apart(kept, observer.tensors(names), distance)


def _keep(tensors: Mapping[str, Any], path: str) -> None:
    with Store.init(path) as store:
        plain = {name: one.detach() if is_tensor(one) else one for name, one in tensors.items()}
        store.save({_TENSORS: plain})


def _seed(seed: int) -> None:
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        np.random.seed(seed)  # noqa: NPY002 - many loops draw from the global generator
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(seed)


def _failure(error: BaseException) -> dict[str, str]:
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
        frames = frames.tb_next
    # If all frames are in ckstore, this is a bug, and the frames are the only information about it.
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    return {"error": type(error).__name__, "message": str(error), "traceback": text}


def main(path: str) -> None:
    """Run the task in a file, write the result into its folder, and end this process."""
    task = Task.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    # After the timeout, this writes the stacks of all threads to stderr, even if the interpreter itself hangs.
    faulthandler.dump_traceback_later(task.timeout_s, exit=True)
    sys.argv = [*task.arguments]
    result: dict[str, Any]
    worker = None
    try:
        worker = _Worker(task)
        worker.run()
        result = worker.finish()
    except BaseException as error:  # noqa: BLE001 - whatever the loop raises is reported by the process that waits
        result = {} if worker is None else worker.finish()
        raised_in = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1].f_code.co_filename
        # A BadInput from a call that the loop itself makes is a failure of the loop.
        if isinstance(error, BadInput) and raised_in.startswith(_OWN):
            result["refused"] = {"message": error.message, "hint": error.hint}
        else:
            result["failure"] = _failure(error)
    whole = Path(task.folder, f"{RESULT}.part")
    whole.write_text(json.dumps(result), encoding="utf-8")
    whole.rename(Path(task.folder, RESULT))
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the usual exit, because threads and exit handlers of a training may wait for a network.
    os._exit(0)
