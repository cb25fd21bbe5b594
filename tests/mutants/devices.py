"""Mutants of what is copied to and from devices, and of what is not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/gpu"

DEVICES = [
    Mutant(
        "a chunk of a released device is read before another save gets its buffer",
        "device-read-after-the-end",
        "store_sources",
        "        writer.complete(blobs)\n"
        "        found = None if health is None else health.complete(storages)\n"
        "    # `_StopSignal` only means that another thread failed. The caller needs the error of that thread.\n"
        "    except _StopSignal as stopped:\n"
        "        raise writer.first_error or stopped from None\n"
        "    finally:\n"
        "        writer.stop()\n",
        "        found = None if health is None else health.complete(storages)\n"
        "    finally:\n        writer.stop()\n    writer.complete(blobs)\n",
        f"{_ROOM}/test_save.py::test_a_chunk_that_was_left_to_another_and_is_not_there_is_read_again_and_leaves_no_buffer",
        "assert",
    ),
    Mutant(
        "fingerprints before and after a read from a device are equal",
        "fingerprint-not-taken-again",
        "FingerprintedChunks.settle",
        "            if old != new:\n",
        "            if False:\n",
        f"{_ROOM}/test_unchanged.py::test_a_tensor_that_changes_during_the_save_fails_it[cpu]",
        "DID NOT RAISE",
    ),
    Mutant(
        "fingerprints before and after a copy made before the walk are equal",
        "head-start-believed",
        "HeadStart.indexes",
        "fingerprints.get(one.index) != before",
        "one.index not in fingerprints",
        f"{_ROOM}/test_ahead.py::test_what_changes_before_the_walk_comes_to_it_is_saved_as_the_walk_finds_it[cpu-False]",
        "assert",
    ),
    Mutant(
        "a saver gets a snapshot only after the copies are complete",
        "sent-before-it-is-copied",
        "Client._submit_behind",
        "                copying.wait()\n",
        "",
        f"{_ROOM}/test_save_async.py::test_a_state_is_saved_as_it_was_at_the_call[cpu]",
        "assert",
    ),
    Mutant(
        "a tensor is released only after its copy is complete",
        "released-before-it-is-copied",
        "Copying.keep",
        "        self._kept.append(source)\n",
        "        pass\n",
        f"{_ROOM}/test_devices.py::test_a_source_is_kept_until_its_copy_is_done",
        "assert",
    ),
    Mutant(
        "pinned memory is reused only after the device has read it",
        "slot-filled-too-early",
        "_Slot.wait",
        "            self.mark.synchronize()\n",
        "            pass\n",
        f"{_ROOM}/test_load.py::test_a_state_of_several_slots_for_each_thread_is_loaded",
        "assert",
    ),
    Mutant(
        "memory is unpinned before it is unmapped",
        "unmapped-while-pinned",
        "Snapshot.close",
        "                self._pinned.close()\n",
        "                pass\n",
        f"{_ROOM}/test_devices.py::test_memory_is_pinned_once_and_unpinned_before_it_goes",
        "assert",
    ),
    Mutant(
        "a save that ends after its store was closed frees its snapshot",
        "kept-after-the-close",
        "SnapshotPool.give",
        "self._free[:] if self._is_closed else self._free[:-most]",
        "self._free[:-most]",
        "tests/saver/test_memory.py::test_a_save_that_ends_after_its_store_was_closed_gives_its_snapshot_back",
        "the memory is freed",
    ),
]
