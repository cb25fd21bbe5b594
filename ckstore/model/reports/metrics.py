"""Metrics as text for Prometheus and similar programs. Source: the OpenMetrics specification 1.0, text format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ckstore.errors import BadInput

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of samples."""

    name: str  # without the ``_total`` that samples of a counter have
    kind: Literal["counter", "gauge"]
    about: str  # one sentence
    label: str  # name of the label that distinguishes the samples; empty if there is a single sample
    samples: Mapping[str, float]  # value of that label -> value of the sample


def openmetrics(metrics: Iterable[Metric], store: str, labels: Mapping[Any, Any]) -> str:
    """Return metrics as text, in which each sample also has the label ``store`` and the given labels."""
    metrics = tuple(metrics)
    taken = {"store", *(metric.label for metric in metrics)}
    for name, text in labels.items():
        if not isinstance(name, str) or not _LABEL.match(name) or not isinstance(text, str) or name in taken:
            msg = f"{name!r}={text!r} cannot be a label: a name of letters, digits and _, other than {sorted(taken)}"
            raise BadInput(msg, hint="its value is a str")
    lines = []
    for metric in metrics:
        lines += [f"# TYPE {metric.name} {metric.kind}", f"# HELP {metric.name} {_escaped(metric.about)}"]
        ending = "_total" if metric.kind == "counter" else ""
        for own, value in metric.samples.items():
            given = {**({metric.label: own} if metric.label else {}), "store": store, **labels}
            all_labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in given.items())
            lines.append(f"{metric.name}{ending}{{{all_labels}}} {value!r}")
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # a path may have bytes that are not UTF-8
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
