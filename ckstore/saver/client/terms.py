"""What the caller of a background save wants of the saver."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.errors import BadInput


@dataclass(frozen=True, slots=True)
class Terms:
    """How a save goes about the others, and for how long anything is waited for.

    Attributes:
        max_in_flight: So many snapshots there are at a time.
        when_busy: ``wait``, ``skip`` or ``error``: what to do when there are so many.
        timeout_s: How long ``wait`` waits.
        stall_timeout_s: A saver that does nothing for so long is given up.
        nice: Added to the niceness of a saver that is started now.
        after: An event of a device, behind which the state is copied; None: all that was queued is waited for.
    """

    max_in_flight: int = 1
    when_busy: str = "wait"
    timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    nice: int = 0
    after: object = None

    def check(self) -> None:
        """Raise if something cannot be meant."""
        if self.max_in_flight < 1:
            raise BadInput(f"max_in_flight must be at least 1, got {self.max_in_flight}")
        if self.when_busy not in ("wait", "skip", "error"):
            raise BadInput(f"when_busy must be 'wait', 'skip' or 'error', got {self.when_busy!r}")
        if not (self.timeout_s >= 0 and self.stall_timeout_s > 0):
            msg = f"timeout_s and stall_timeout_s are seconds, got {self.timeout_s!r} and {self.stall_timeout_s!r}"
            raise BadInput(msg)
        if not 0 <= self.nice <= 19:
            raise BadInput(f"nice must be 0 to 19, got {self.nice}")
        if self.after is not None and not hasattr(self.after, "synchronize"):
            raise BadInput(f"after must be an event of a device, such as torch.cuda.Event, got {self.after!r:.100}")
