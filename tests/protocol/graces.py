"""Two hosts and the grace: what is dropped on one is freed, while the other reads it, or claims it by an old name.

The inode of blob D has the names ``C`` blobs/ab/D, ``K`` in a checkpoint that is published or in trash, ``T`` in
trash/, and ``S`` in the staging of a saver on host 2. Host 1 drops and collects. Host 2 believes for a while what it
was told of names; host 1 what it was told of the count of links, perhaps just before the grace is over. A *tick* is the
time of the grace. Before it is over host 2 has forgotten the names that it was told, a claim that was begun has come to
its link, and a reader who had K when it was dropped has let go: that is what the grace is for, and what
docs/how-to/shared.md asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_DROP = "ops.free.drop.drop"
_APART = "objects.collector.Collector._take_apart"
_CONDEMN = "objects.collector.Collector.mark_for_deletion"
_FINISH = "objects.collector.Collector._finish"
_PUT_BACK = "objects.trash.put_back"
_CLAIM = "objects.staging.Staging.claim"
_PUBLISH = "objects.publish.publish"
_READ = "objects.checkpoints.CheckpointDirectory.at"


@dataclass(frozen=True, slots=True)
class GraceRules(Switches):
    """Which rules the modelled code keeps."""

    grace_of_dropped: bool = True  # Collector._take_apart: a dropped checkpoint waits for the grace
    grace_of_condemned: bool = True  # Collector._finish: and then its blob, which others may still claim
    condemned_by_rename: bool = (
        True  # Collector.mark_for_deletion: it leaves its name first, so that no new claim finds it
    )
    counted_again: bool = True  # Collector._finish: the count of links after the grace
    asked_of_the_server: bool = True  # statx.refresh: not the count that this host was told before
    put_back: bool = True  # trash.put_back: what has a use again gets its name again


class Blob(NamedTuple):
    """One state.

    Attributes:
        names: Which of C, K, T and S the inode has.
        dropped: Whether K is in trash.
        young: What came to trash since the last tick: K, T.
        told: Whether host 2 believes the name C.
        links: What host 1 believes of the count of links; -1: it would ask.
        saver: ``new``, ``looked``, ``linked``, ``published`` or ``missed``.
        reader: Whether host 2 reads K.
        ticks: How often the grace may pass.
        collects: How many looks of gc there may be.
        lied: Whether bytes were reported as freed that are still in use.
    """

    names: frozenset[str] = frozenset("CK")
    dropped: bool = False
    young: frozenset[str] = frozenset()
    told: bool = False
    links: int = -1
    saver: str = "new"
    reader: str = "new"
    ticks: int = 4
    collects: int = 7
    lied: bool = False

    def plus(self, name: str) -> Blob:
        """Return the state with one name more."""
        return self._replace(names=self.names | {name})

    def minus(self, name: str) -> Blob:
        """Return the state with one name less."""
        return self._replace(names=self.names - {name})


class GraceModel:
    """The model under some rules."""

    def __init__(self, rules: GraceRules) -> None:
        self._rules = rules

    def explore(self) -> Explored:
        """Look at every state."""
        return explore(Blob(), lambda blob: list(self.steps(blob)), self.wrong)

    def steps(self, blob: Blob) -> Iterator[Step[Blob]]:
        """Yield everything that may happen next."""
        if not blob.dropped:
            dropped = blob._replace(dropped=True, young=blob.young | {"K"})
            yield Step("R", _DROP, "moves K to trash, and tells", dropped)
        yield from self._reader(blob)
        yield from self._saver(blob)
        if blob.collects:
            for step in self._collector(blob):
                yield step._replace(state=step.state._replace(collects=blob.collects - 1))
        if blob.ticks and blob.saver != "looked":
            reader = "end" if blob.reader == "reads" and blob.dropped else blob.reader
            passed = blob._replace(young=frozenset(), told=False, reader=reader, ticks=blob.ticks - 1)
            yield Step("", "", "THE GRACE PASSES", passed)

    def _reader(self, blob: Blob) -> Iterator[Step[Blob]]:
        if blob.reader == "new" and not blob.dropped:
            yield Step("reader", _READ, "opens K and maps it", blob._replace(reader="reads"))
        elif blob.reader == "reads":
            yield Step("reader", _READ, "lets go", blob._replace(reader="end"))

    def _saver(self, blob: Blob) -> Iterator[Step[Blob]]:
        if blob.saver == "new" and not blob.told and "C" in blob.names:
            yield Step("B", "", "is told the name of D", blob._replace(told=True))
        if blob.saver == "new" and (blob.told or "C" in blob.names):
            yield Step("B", _CLAIM, "goes to link it", blob._replace(told=True, saver="looked"))
        elif blob.saver == "new":
            yield Step("B", _CLAIM, "finds no blob: a miss", blob._replace(saver="missed"))
        elif blob.saver == "looked" and blob.names:
            yield Step("B", _CLAIM, "links it, whatever its name is by now", blob.plus("S")._replace(saver="linked"))
        elif blob.saver == "looked":
            yield Step("B", _CLAIM, "ESTALE: a miss", blob._replace(saver="missed"))
        elif blob.saver == "linked":
            yield Step("B", _PUBLISH, "publishes", blob._replace(saver="published"))

    def _collector(self, blob: Blob) -> Iterator[Step[Blob]]:
        rules = self._rules
        if "K" in blob.names and blob.dropped and not (rules.grace_of_dropped and "K" in blob.young):
            yield Step("G", _APART, "unlinks what is in K", blob.minus("K"))
        if "C" in blob.names and blob.dropped and "K" not in blob.names:
            looked = blob._replace(links=len(blob.names))
            if looked.links > 1:
                yield Step("G", _CONDEMN, "it has further links", looked)
            elif rules.condemned_by_rename:
                condemned = looked.minus("C").plus("T")
                yield Step("G", _CONDEMN, "renames it to trash/", condemned._replace(young=blob.young | {"T"}))
            elif "C" in blob.young:
                yield Step("G", _CONDEMN, "unlinks it where it is", self._freed(blob, "C"))
            else:
                yield Step("G", _CONDEMN, "means to unlink it", looked._replace(young=blob.young | {"C"}))
        if "T" in blob.names:
            yield from self._condemned(blob)

    def _condemned(self, blob: Blob) -> Iterator[Step[Blob]]:
        rules = self._rules
        if rules.grace_of_condemned and "T" in blob.young:
            yield Step("G", _FINISH, "it waits", blob._replace(links=len(blob.names)))
            return
        believed = blob.links if blob.links >= 0 and not rules.asked_of_the_server else len(blob.names)
        if not rules.counted_again or believed == 1:
            yield Step("G", _FINISH, "unlinks it", self._freed(blob, "T"))
        elif rules.put_back:
            yield Step("G", _PUT_BACK, "gives it its name back", blob.minus("T").plus("C")._replace(links=believed))

    def _freed(self, blob: Blob, name: str) -> Blob:
        return blob.minus(name)._replace(lied=blob.lied or len(blob.names) > 1, young=blob.young - {name})

    def wrong(self, blob: Blob) -> str:
        """Return what is bad in this state, or when the grace has passed often, and gc was run."""
        if blob.reader == "reads" and "K" not in blob.names:
            return "a checkpoint that a reader had before it was dropped lost its names"
        if blob.saver in ("linked", "published") and not blob.names:
            return "the claim of a saver is gone"
        if blob.saver == "looked" and not blob.names:
            return "bytes were freed while a saver went to link them"
        if blob.lied:
            return "bytes were reported as freed, and a checkpoint has them"
        settled = blob._replace(saver=blob.saver if blob.saver == "published" else "missed", reader="end", dropped=True)
        if settled.saver != "published":  # its staging is swept, and taken apart
            settled = settled.minus("S")
        for _ in range(9):
            settled = settled._replace(young=settled.young & {"C"}, links=-1)
            settled = next((step.state for step in self._collector(settled)), settled)
        if settled.saver == "published":
            return "" if settled.names >= {"C", "S"} and "T" not in settled.names else "a blob in use has no name"
        return "nothing needs the blob, and it is never freed" if settled.names else ""
