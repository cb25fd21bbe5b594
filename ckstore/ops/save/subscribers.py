"""Call the subscribers of an open store after each commit, in a fixed order.

Retention and the journal are called first. The subscribers that were registered when the store was opened follow (they
start the processes that mirror and compact). The metrics are last, because they count the work of all other
subscribers. All subscribers are called in the thread of the save, after the checkpoint is durable and tagged and before
the save returns. No subscriber can make the save fail. An error of a subscriber becomes a warning of the save and a
problem of the store, and the next subscribers are still called.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckstore.errors import CkstoreError, CkstoreWarning
from ckstore.interpreter import log_notes
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.ops import events
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.context import NEW, Context, Publication, Subscriber
from ckstore.ops.free.make_room import failed_afterwards, keep_policy


def tell_subscribers(publication: Publication) -> CheckpointInfo:
    """Call each subscriber with a published checkpoint, and return the info that the save returns."""
    _tell(publication, (_RETENTION, _JOURNAL, *publication.context.subscribers, _METRICS))
    return publication.info


def tell_caller(context: Context, checkpoint: CheckpointInfo) -> None:
    """Call the subscribers of this process after a saver process or another rank published a checkpoint for it."""
    publication = Publication(context, checkpoint, "reported")
    _tell(publication, [subscriber for subscriber in context.subscribers if subscriber.of_caller])
    log_notes(checkpoint.name, publication.notes, context.notices.logged)


def _tell(publication: Publication, subscribers: Sequence[Subscriber]) -> None:
    problems = publication.context.notices.problems
    for name, told, *_ in subscribers:
        try:
            notes = told(publication)
        except (CkstoreError, CkstoreWarning, OSError) as error:  # a warning filter may turn warnings into errors
            why = describe_os_error(error) if isinstance(error, OSError) else str(error)
            notes = (failed_afterwards(name, publication.checkpoint.run, why),)
        if notes:
            problems[name] = "; ".join(notes)
        else:
            problems.pop(name, None)
        publication.notes += notes


def _note(publication: Publication) -> Sequence[str]:
    if publication.origin in NEW:
        publication.laps.end("finishing_s")
        info, took_s = publication.checkpoint, round(sum(publication.laps.seconds.values()), 3)
        kind = publication.origin
        events.note(publication.context, kind, info.key.run_step, id=info.id, nbytes=info.new_bytes, seconds=took_s)
    return ()


def _count(publication: Publication) -> Sequence[str]:
    if publication.origin != "joined":  # the rank that published the checkpoint counts it
        publication.laps.end("finishing_s")
        publication.context.totals.saved(publication.info)
    return ()


_RETENTION = Subscriber("retention", keep_policy)
_JOURNAL = Subscriber("the journal", _note)
_METRICS = Subscriber("metrics", _count)
