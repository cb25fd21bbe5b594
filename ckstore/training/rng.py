"""The states of the global random generators of this process: of Python, NumPy and torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

from ckstore.training import accelerator_generators


def random_states() -> dict[str, Any]:
    """Return the states of the global generators of all imported libraries, as values that a state may hold."""
    states: dict[str, Any] = {}
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        states["numpy"] = {
            "name": str(name),
            "keys": keys.copy(),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if (others := accelerator_generators.states()) is not None:
            states["cuda"] = others
    return {"python": python_state(random), **states}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the global generators of this process to the states that `random_states` returned."""
    set_python_state(random, states["python"])
    if "numpy" in states:
        import numpy as np

        of = states["numpy"]
        np.random.set_state(  # noqa: NPY002 - programs draw from the global generator
            (of["name"], of["keys"], of["position"], of["has_gauss"], of["cached"])
        )
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda" in states:
            accelerator_generators.set_states(states["cuda"])


def python_state(generator: Any) -> dict[str, Any]:
    """Return the state of a `random.Random` or of the module `random`, with its words as bytes."""
    version, words, gauss = generator.getstate()
    return {"version": version, "words": b"".join(word.to_bytes(4, "little") for word in words), "gauss": gauss}


def set_python_state(generator: Any, state: Mapping[str, Any]) -> None:
    """Set the state that `python_state` returned."""
    data: bytes = state["words"]
    words = tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))
    generator.setstate((state["version"], words, state["gauss"]))
