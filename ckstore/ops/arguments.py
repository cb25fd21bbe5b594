"""What a caller meant by an argument that a public method does not have: a word of torch, or a misspelt one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MEANT = {
    "map_location": "device",
    "location": "device",
    "checkpoint_id": "ref",
    "global_step": "step",
    "iteration": "step",
    "epoch": "step",
    "name": "run",
    "tag": "tags",
    "overwrite": "if_exists",
}
"""Words of torch and of trainers -> the argument that is meant."""
_LEAVE_OUT = {
    "map_location": "the tensors of the target stay on their devices",
    "weights_only": "a load never executes anything",
    "pickle_module": "nothing is pickled",
    "pickle_protocol": "nothing is pickled",
    "encoding": "nothing is pickled",
    "_use_new_zipfile_serialization": "nothing is pickled",
    "allow_partial_load": "strict=False loads what fits",
    "no_dist": "without ranks= there is one process",
}
"""Words of torch that no method has -> why they are not needed."""


def unknown_argument(method: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return the message for the first argument that a method does not have; empty if it has all of them."""
    import inspect  # seldom needed, and slow to import

    parameters = inspect.signature(method).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return ""
    word = next((name for name in given if name not in parameters), None)
    return "" if word is None else message_for(method, word)


def message_for(method: Callable[..., Any], word: str, options: Iterable[str] = ()) -> str:
    """Return the message for an argument that a method does not have, neither in its signature nor in its options."""
    import difflib
    import inspect

    message = f"{method.__name__}() has no argument {word!r}"
    parameters = [*inspect.signature(method).parameters, *options]
    names = [name for name in parameters if name not in {"self", "options"}]
    meant = _MEANT.get(word)
    if meant is None or meant not in parameters:
        if word in _LEAVE_OUT:
            return f"{message}: leave it out, {_LEAVE_OUT[word]}"
        meant = next(
            iter(difflib.get_close_matches(word, names, 1)),
            None,
        )
    return f"{message}; did you mean {meant}=?" if meant else message
