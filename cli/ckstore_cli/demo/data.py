"""What the demo trains on: the sources of Python's standard library, and their order.

`Batches` and `Rng` have `state_dict` and `load_state_dict`, so a store takes them as they are, like
a module or an optimizer. Each of the three generators of a usual training script has a part in what
comes out: NumPy's draws the order, Python's shifts the windows, torch's drops activations.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ckstore.errors import BadInput

CORPUS_BYTES = 2**20
CORPUS_MIN_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text.

    Attributes:
        text: Its bytes, uint8.
        files: How many files it was taken from.
        sha256: Digest of the bytes, hexadecimal.
    """

    text: Tensor
    files: int
    sha256: str


def read_corpus(package: str = "", limit_bytes: int = CORPUS_BYTES) -> Corpus:
    """Read the modules of a package of the standard library, or at its top, by name, up to `limit_bytes`.

    Raises:
        BadInput: This Python came without its sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"], package)
    text, files = bytearray(), 0
    for path in sorted(folder.glob("*.py")):
        if len(text) >= limit_bytes:
            break
        text += path.read_bytes()
        files += 1
    if len(text) < CORPUS_MIN_BYTES:
        msg = f"{folder} should hold the sources of the standard library, found {len(text)} bytes"
        raise BadInput(msg, hint="run the demo with a Python that has them, such as python.org's")
    del text[limit_bytes:]
    sha256 = hashlib.sha256(text).hexdigest()
    return Corpus(torch.frombuffer(text, dtype=torch.uint8), files, sha256)


class Batches:
    """Batches of windows into a text, in an order that is drawn again for each epoch.

    An epoch is a draw of `epoch_windows` windows out of the whole text.
    """

    def __init__(self, corpus: Corpus, *, context: int, batch_size: int, epoch_windows: int, seed: int) -> None:
        self.corpus = corpus
        self.window_bytes = context + 1
        self.batch_size = batch_size
        self.epoch_windows = epoch_windows
        self.epoch = 0
        self.position = 0
        self._numpy = np.random.default_rng(seed)
        self._order = self._draw()

    def next(self) -> Tensor:
        """Return the next batch: bytes as int64, (batch size, context + 1)."""
        if self.position + self.batch_size > self.epoch_windows:
            self.epoch += 1
            self.position = 0
            self._order = self._draw()
        chosen = self._order[self.position : self.position + self.batch_size].tolist()
        self.position += self.batch_size
        return torch.stack([self._window(number) for number in chosen]).long()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides about the batches to come."""
        return {
            "corpus_sha256": self.corpus.sha256,
            "epoch": self.epoch,
            "position": self.position,
            "order": self._order.copy(),
            "numpy": self._numpy.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            BadInput: `state` belongs to another text.
        """
        if state["corpus_sha256"] != self.corpus.sha256:
            msg = (
                f"the run was trained on a text with SHA-256 {state['corpus_sha256'][:12]}, "
                f"this Python's standard library has {self.corpus.sha256[:12]}"
            )
            raise BadInput(msg, hint="resume with the Python that began the run")
        self.epoch = state["epoch"]
        self.position = state["position"]
        self._order = np.array(state["order"])
        self._numpy.bit_generator.state = state["numpy"]

    def _draw(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        windows = len(self.corpus.text) // self.window_bytes - 1
        return self._numpy.permutation(windows)[: self.epoch_windows]

    def _window(self, number: int) -> Tensor:
        start = number * self.window_bytes + random.randrange(self.window_bytes)
        return self.corpus.text[start : start + self.window_bytes]


class Rng:
    """The generators that a program has only one of each: torch's and Python's."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both."""
        return {"torch": torch.get_rng_state(), "python": random.getstate()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set both."""
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
