"""Look at every state that a model can reach, the near ones first, and tell the shortest way to a bad one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """One step of a model.

    Attributes:
        who: Who does it.
        function: The function of the code that it stands for, below ``ckstore.``; empty: a kill, a power cut, a user.
        what: What it does, for people.
        state: What is then.
    """

    who: str
    function: str
    what: str
    state: S

    def __str__(self) -> str:
        return " ".join(part for part in (self.who, self.function, self.what) if part)


@dataclass(frozen=True)
class Explored:
    """What a search found.

    Attributes:
        states: How many states were reached.
        problem: What is wrong in the nearest bad state; empty: nothing in any.
        trace: The steps to it.
        functions: Every function of the code that a step stood for.
    """

    states: int
    problem: str
    trace: tuple[str, ...]
    functions: frozenset[str]

    def __str__(self) -> str:
        if not self.problem:
            return f"{self.states} states, none is bad"
        lines = [f"{number:3} {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([f"after {self.states} states: {self.problem}", *lines])


def explore(
    start: S, steps: Callable[[S], Iterable[Step[S]]], wrong: Callable[[S], str], *, most: int = 1_000_000
) -> Explored:
    """Reach every state from `start`; stop at the first in which something is wrong.

    Raises:
        RuntimeError: There are more than `most` states.
    """
    came_by: dict[S, tuple[S, Step[S]] | None] = {start: None}
    todo = deque([start])
    functions: set[str] = set()
    while todo:
        state = todo.popleft()
        problem = wrong(state)
        if problem:
            return Explored(len(came_by), problem, _trace(came_by, state), frozenset(functions))
        for step in steps(state):
            functions.add(step.function)
            if step.state not in came_by:
                came_by[step.state] = (state, step)
                todo.append(step.state)
        if len(came_by) > most:
            raise RuntimeError(f"more than {most} states: the bounds are too large")
    return Explored(len(came_by), "", (), frozenset(functions - {""}))


def _trace(came_by: dict[S, tuple[S, Step[S]] | None], state: S) -> tuple[str, ...]:
    steps: list[str] = []
    link = came_by[state]
    while link is not None:
        state, step = link
        steps.append(str(step))
        link = came_by[state]
    return tuple(reversed(steps))
