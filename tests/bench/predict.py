"""``python -m tests.bench predict``: what AdamW's arithmetic leaves of a state one step on, beside a difference.

Weights and the second moment follow from the state before and the new first moment, whose gradient is in no checkpoint:
it is what has to be stored. See docs/adr/0024-deltas.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from ckstore.codecs.tiles import TILE_BYTES, encode
from tests.bench import histories
from tests.bench.histories import Parts

_STEP, _EPS, _DECAY = 40, 1e-8, 1e-2


def main(arguments: Sequence[str]) -> int:
    """Measure, and print bytes an element."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench predict", description=__doc__)
    parser.add_argument("--width", type=int, default=256, help="of the model")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    histories.WIDTH = given.width
    training = histories.pretraining()
    states = [parts for _, (_, parts) in zip(range(_STEP + 2), training, strict=False)]
    _print("float32 gradients, lr 1e-3", states[_STEP], states[_STEP + 1], _STEP + 2, 1e-3, (0.9, 0.95))
    model = next(training)[0]
    tuned = histories.taken(histories.finetuning(model, 3e-6), [_STEP, _STEP + 1])
    _print("bfloat16 gradients, lr 3e-6", tuned[_STEP], tuned[_STEP + 1], _STEP + 2, 3e-6, (0.9, 0.999), narrow=True)
    return 0


def _print(  # noqa: PLR0917
    name: str, old: Parts, new: Parts, step: int, rate: float, betas: tuple[float, float], *, narrow: bool = False
) -> None:
    a, b = ({kind: _flat(parts[kind]) for kind in ("w", "m", "v")} for parts in (old, new))
    plain = {kind: _bytes(b[kind], a[kind]) for kind in a}
    # Without the gradient: the first moment only decays.
    decayed = a["m"] * betas[0]
    gradient = a["m"] + (b["m"] - a["m"]) / (1 - betas[0])
    stored = 0.0
    if narrow:
        half = gradient.to(torch.bfloat16)
        gradient = half.float()
        stored = _bytes(half.view(torch.int16), _flat(old["m"]).to(torch.bfloat16).view(torch.int16))
    m = a["m"].lerp(gradient, 1 - betas[0])
    v = (a["v"] * betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    first, second = 1 - betas[0] ** step, 1 - betas[1] ** step
    denominator = (b["v"].sqrt() / second**0.5).add_(_EPS)
    w = (a["w"] * (1 - rate * _DECAY)).addcdiv_(b["m"], denominator, value=-rate / first)
    m_bytes = min(plain["m"], _bytes(b["m"], decayed))
    if narrow:
        m_bytes = min(m_bytes, stored + _bytes(b["m"], m))
    left = {"w": _bytes(b["w"], w), "m": m_bytes, "v": _bytes(b["v"], v)}
    print(f"{name}, bytes an element of 4 (plain difference):")
    for kind, nbytes in left.items():
        print(f"  {kind}  {nbytes:.3f} ({plain[kind]:.3f})")
    print(f"  m by its decay alone: {_bytes(b['m'], decayed):.3f}")
    both = sum(left.values()), sum(plain.values())
    print(f"  all {both[0]:.2f} ({both[1]:.2f}): {both[1] / both[0]:.2f} times fewer than the difference")
    print(f"  and {12 / both[0]:.2f} times fewer than plain")


def _flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def _bytes(new: torch.Tensor, old: torch.Tensor) -> float:
    """Return the bytes an element of the smallest form of each tile."""
    x, base = (memoryview(one.contiguous().view(torch.uint8).numpy().tobytes()) for one in (new, old))
    width = new.element_size()
    starts = range(0, len(x), TILE_BYTES)
    forms = [encode(x[at : at + TILE_BYTES], base[at : at + TILE_BYTES], width) for at in starts]
    return sum(len(form.data) for form in forms) / len(new)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
