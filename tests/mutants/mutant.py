"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass

_LAW = "tests/faults/test_trace_law.py::test_an_act_keeps_every_law"


@dataclass(frozen=True)
class Mutant:
    """The code without a guard.

    Attributes:
        guard: What is taken away, in the words of docs/protocol.md.
        name: Tells it from the others; letters, digits and dashes.
        file: Where, relative to the package ``ckstore``.
        old: The text there; it occurs once.
        new: What stands there instead.
        caught_by: The test that fails.
        says: What is in its output when it fails for that reason: a law, or words of an assertion.
        failing_sync: The fsync of the act that fails; 0: none.
    """

    guard: str
    name: str
    file: str
    old: str
    new: str
    caught_by: str
    says: str
    failing_sync: int = 0

    @property
    def act(self) -> str:
        """The act that breaks the law; empty if the law does not catch it."""
        return self.caught_by.partition("[")[2].rstrip("]") if self.caught_by.startswith(_LAW) else ""

    def without_guard(self, sources: str) -> str:
        """Return the sources of the mutant.

        Raises:
            ValueError: The text is not there, or not once: the guard has moved, and the mutant must follow.
        """
        found = sources.count(self.old)
        if found != 1:
            msg = f"mutant {self.name}: its text is {found} times in ckstore/{self.file}, wanted once"
            raise ValueError(msg)
        return sources.replace(self.old, self.new)

    @property
    def catcher(self) -> str:
        """Who catches it, for people."""
        if self.act:
            failing = ", whose fsync fails" if self.failing_sync else ""
            return f"trace law {self.says.removesuffix(' (')}, act {self.act}{failing}"
        file, _, test = self.caught_by.partition("::")
        return f"`{test or file}`"


def law(act: str) -> str:
    """Return the test that judges an act by the law."""
    return f"{_LAW}[{act}]"
