"""The plot of a run as SVG: a row of bars a scenario, medians with their spread, baselines, ckstore and peers apart.

Written by hand, so that nothing has to be installed for it; a bar is a rectangle.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from tests.bench.report import number
from tests.bench.results import Results

_WIDE, _LABEL, _BAR, _GAP, _HEAD = 860, 260, 14, 4, 30
_COLOURS = {"baseline": "#9aa5b1", "ckstore": "#0b6e4f", "peer": "#d08c3c"}


def plot(read: Mapping[str, Any]) -> str:
    """Return the SVG."""
    results = Results(read)
    parts: list[str] = []
    y = 10
    for name, scenario in results.scenarios.items():
        bars = [(case, about["role"], results.times(name, case)) for case, about in scenario["cases"].items()]
        bars = [bar for bar in bars if bar[2]]
        if bars:
            y = _scenario(parts, y, f"{scenario['title']}, seconds", sorted(bars, key=lambda bar: min(bar[2])))
    style = "<style>text{font:11px sans-serif;fill:#222}.h{font-weight:bold;font-size:12px}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{y}" viewBox="0 0 {_WIDE} {y}">'
    return "\n".join([head, style, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])


def _scenario(parts: list[str], y: int, title: str, bars: list[tuple[str, str, list[float]]]) -> int:
    parts.append(f'<text class="h" x="10" y="{y + 14}">{escape(title)}</text>')
    y += _HEAD - 8
    longest = max(max(times) for _, _, times in bars)
    scale = (_WIDE - _LABEL - 80) / longest if longest else 0.0
    for case, role, times in bars:
        middle = sorted(times)[len(times) // 2]
        line = y + _BAR // 2
        parts += [
            f'<text x="{_LABEL - 6}" y="{y + 11}" text-anchor="end">{escape(case)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{middle * scale:.1f}" height="{_BAR}" fill="{_COLOURS[role]}"/>',
            f'<path d="M{_LABEL + min(times) * scale:.1f} {line}H{_LABEL + max(times) * scale:.1f}" stroke="#222"/>',
            f'<text x="{_LABEL + max(times) * scale + 6:.1f}" y="{y + 11}">{number(middle)}</text>',
        ]
        y += _BAR + _GAP
    return y + 10
