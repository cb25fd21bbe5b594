"""Names and contents of the records of evaluations, without I/O.

The record of an evaluation is a file in ``locks/``. The process that computes the metric locks this file. Source:
docs/format/v1.md, "Evaluations".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS, is_digest
from ckstore.model.document import check_created, parse_document, refuse
from ckstore.model.manifest.describe import describe
from ckstore.model.words import printable

EVALUATION_VERSION = 1
# The name of the metric is the only part of a record without a limit of its own.
EVALUATION_MAX_BYTES = 2**20
_FORMAT = "ckstore-evaluation"
_NAME = re.compile(r"evaluation-(?P<id>[a-z0-9]+-[0-9a-f]+)\.(?P<metric>[0-9a-f]{16})\.(?P<number>[1-9][0-9]{0,8})\Z")
_OVER = ".over"


class RecordName(NamedTuple):
    """The name of the record of an evaluation."""

    id: str  # id of the checkpoint
    metric: str  # `metric_key` of the metric
    number: int  # 1 for the first evaluation of the checkpoint for this metric, 2 for the next, …
    is_over: bool = False  # whether the process has recorded that the evaluation ended without the metric

    @property
    def text(self) -> str:
        """The name of the file."""
        return f"evaluation-{self.id}.{self.metric}.{self.number}{_OVER if self.is_over else ''}"


def parse_record_name(text: str) -> RecordName | None:
    """Parse the name of a file in ``locks/``, or return None if the file is not a record of an evaluation."""
    found = _NAME.match(text.removesuffix(_OVER))
    if found is None or not is_digest(found["id"]):
        return None
    return RecordName(found["id"], found["metric"], int(found["number"]), text.endswith(_OVER))


def metric_key(metric: str) -> str:
    """Return the key of a metric for names of records, because a metric's name may have any characters."""
    return ALGORITHMS["xxh3_128"].digest(metric.encode("utf-8", "surrogatepass")).partition("-")[2][:16]


def check_metrics(lacking: str | Iterable[str]) -> tuple[str, ...]:
    """Return a caller's names of metrics without duplicates, and refuse names that `Store.annotate` refuses."""
    try:
        names = dict.fromkeys([lacking] if isinstance(lacking, str) else lacking, 0)
    except TypeError as error:
        raise BadInput(f"lacking: wanted the name of a metric, or several, got {lacking!r:.80}") from error
    checked = tuple(describe(names, None, "", None).metrics)
    if not checked:
        raise BadInput("lacking: wanted the name of a metric, or several, got none")
    return checked


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The content of the record of an evaluation, with the metric and the process that computes it."""

    metric: str
    created: str  # UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``
    host: str  # the name of the host of the process, for users
    boot: str  # identifies the machine, and the time at which it was booted
    pid: int  # the process id, for users
    locks_reach_hosts: bool = False  # whether other hosts see the lock on the record, according to its mount

    def __str__(self) -> str:
        return printable(f"for {self.metric}, by PID {self.pid} on {self.host} since {self.created[:19]}Z")

    def render(self) -> bytes:
        """Return the content of the record."""
        names = ("metric", "created", "host", "boot", "pid", "locks_reach_hosts")
        members = {name: getattr(self, name) for name in names}
        return canonical_json({"format": _FORMAT, "version": EVALUATION_VERSION, **members}) + b"\n"


def parse_evaluation(data: bytes, where: str) -> Evaluation:
    """Parse the record of an evaluation."""
    members = parse_document(data, _FORMAT, EVALUATION_VERSION, where)
    for name in ("metric", "host", "boot"):
        if not isinstance(members.get(name), str):
            refuse(where, name, "a string", members.get(name))
    pid = members.get("pid")
    if type(pid) is not int:
        refuse(where, "pid", "an integer", pid)
    created = check_created(members.get("created"), where)
    reach = members.get("locks_reach_hosts") is True
    return Evaluation(members["metric"], created, members["host"], members["boot"], pid, reach)
