"""What a manifest claims costs nothing: memory and time follow the bytes that are there, and the manifest's own."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckstore
from ckstore import Store
from ckstore.errors import BadInput, CannotStore, DamagedBlob, InsufficientSpace
from ckstore.fs.host import memory
from ckstore.model.manifest.manifest import BlobRecord, Manifest, StorageRecord
from ckstore.objects.blob_check import Checked
from ckstore.ops.check.verifier import Teller
from tests.hostile.archives_manifests import digest, dumps, framed, members_of, named, tensor, text
from tests.support.look import directory_of

MIB = 2**20
ZEROS = bytes(MIB)


def forge(folder: Path, blob: bytes, **members: Any) -> Path:
    """Make the directory of a checkpoint with one blob, and these members in its manifest."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(framed(dumps(members_of(blob, **members))))
    (folder / "blobs" / digest(blob)).write_bytes(blob)
    return folder


def zeros(times: int) -> dict[str, Any]:
    """Return the members of a tensor that is one chunk of zeros again and again."""
    size = times * MIB
    extents = [[digest(ZEROS), 0, 0, MIB]] * times
    return {"storages": [[size, extents]], "leaves": [tensor("w", [size])]}


def test_more_than_fits_into_memory_is_refused_with_both_numbers_before_anything_is_taken(tmp_path: Path) -> None:
    path = forge(tmp_path / "huge", ZEROS, **zeros(100_000))  # 98 GiB of one MiB

    with ckstore.open_checkpoint(path) as checkpoint, pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.ops.read.storage_read.left", lambda: memory.Left(2**33, "in this test"))
        reads: list[Callable[[], object]] = [checkpoint.load, lambda: checkpoint["w"], lambda: checkpoint.slice("w")[:]]
        for read in reads:
            with pytest.raises(InsufficientSpace, match=r"97\.7 GiB of memory, and 8\.0 GiB are available"):
                read()
        assert len(checkpoint.slice("w")[5 : 5 + 10]) == 10


def test_a_tensor_of_zeros_is_loaded_however_few_bytes_it_takes(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.save({"w": torch.zeros(200 * MIB, dtype=torch.uint8)}, step=1)

        assert not store.load(1)["w"].any()
        assert not store.load(1, mmap=True)["w"].any()
        assert sum(path.stat().st_size for path in (directory_of(store, 1) / "blobs").iterdir()) == MIB


@pytest.mark.parametrize(
    "leaves",
    [
        [text("", "str"), text("", "str")],
        [text("", "bytes"), tensor("", [4])],
        [tensor("", [4], "|u1"), tensor("", [4], "|u1", offset=4)],
        [tensor("", [4]), tensor("", [4], "|u1")],
    ],
)
def test_only_tensors_share_a_storage(tmp_path: Path, leaves: list[dict[str, Any]]) -> None:
    path = forge(tmp_path / "shared", b"x" * 4096, **named(leaves))

    with pytest.raises(DamagedBlob, match="one of its own, unless all its leaves are tensors, found that of 'a"):
        ckstore.open_checkpoint(path)


def test_a_storage_is_in_one_place_of_one_file(tmp_path: Path) -> None:
    file = {"path": "f", "kind": "file", "mode": 420, "storages": [0] * 1000}
    path = forge(tmp_path / "file", b"x" * 4096, files=[file])

    with pytest.raises(DamagedBlob, match="each storage in one place of one file"):
        ckstore.open_checkpoint(path)


def test_a_text_that_cannot_be_read_is_damage_of_that_name(tmp_path: Path) -> None:
    path = forge(tmp_path / "text", b"\xff" * 4096, leaves=[text("w", "str")])

    with ckstore.open_checkpoint(path) as checkpoint, pytest.raises(DamagedBlob, match="wanted UTF-8") as caught:
        checkpoint.load()
    assert caught.value.names == ("w",)


def test_a_long_key_above_many_values_is_refused_by_reader_and_writer(tmp_path: Path) -> None:
    key, count = "x" * 2_000_000, 200
    nodes = ["dict", [[key, ["list", list(range(count))]]]]
    path = forge(tmp_path / "names", b"x" * 4096, leaves=[], state=nodes)

    with pytest.raises(DamagedBlob, match="names of at most"):
        ckstore.open_checkpoint(path)
    with Store.init(tmp_path / "store") as store, pytest.raises(CannotStore, match="at most"):
        store.save({key: list(range(count))})


def test_views_that_are_expanded_share_the_bytes_that_are_there(tmp_path: Path) -> None:
    leaves = [tensor("", [2**50], "float32", strides=[0]), tensor("", [2**50, 8], "<f4", strides=[0, 1])]
    loaded = []
    for i, leaf in enumerate(leaves):
        with ckstore.open_checkpoint(forge(tmp_path / f"{i}", b"x" * 4096, **named([leaf]))) as checkpoint:
            loaded.append(checkpoint["a0"])

    assert loaded[0].untyped_storage().nbytes() == 4096
    assert loaded[1].base.nbytes == 4096


def test_an_array_that_lies_in_itself_is_replaced_and_not_filled(tmp_path: Path) -> None:
    leaf = tensor("w", [2**40, 8], "<f4", strides=[0, 1])
    forge(tmp_path / "store-like" / "windows", b"x" * 4096, leaves=[leaf])
    target = np.lib.stride_tricks.as_strided(np.zeros(8, "<f4"), (2**40, 8), (0, 4))

    with Store.init(tmp_path / "store") as store:
        (store.path / "checkpoints" / "main").mkdir()
        (tmp_path / "store-like" / "windows").rename(store.path / "checkpoints" / "main" / "3")
        into = {"w": target}
        store.load_into(into, "main@3")

    assert into["w"] is not target
    assert into["w"].strides == target.strides


def test_the_values_of_expanded_tensors_are_compared_once_and_windows_are_left_out(tmp_path: Path) -> None:
    def leaves() -> dict[str, Any]:
        expanded = tensor("", [2**40, 4], "float32", strides=[0, 1])
        windows = tensor("", [500, 500], "float32", strides=[1, 1])
        return named([expanded, windows])

    values = [np.arange(1024, dtype="<f4") + i for i in range(2)]
    with Store.init(tmp_path / "store") as store:
        (store.path / "checkpoints" / "main").mkdir()
        for step, data in enumerate(values, 3):
            forge(store.path / f"checkpoints/main/{step}", data.tobytes(), step=step, sequence=step, **leaves())
        found = {change.name: change.difference for change in store.diff("main@3", "main@4", values=True).changed}

    assert found["a0"] is not None
    assert found["a0"].largest_absolute == 1
    assert found["a1"] is None


def test_a_document_that_is_a_hole_is_refused_unread(tmp_path: Path) -> None:
    path = forge(tmp_path / "sparse", b"x" * 4096)
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(2**29)

    before = time.process_time()
    with pytest.raises(DamagedBlob, match="holes"):
        ckstore.open_checkpoint(path)
    assert time.process_time() - before < 10


def test_a_blob_larger_than_any_is_refused(tmp_path: Path) -> None:
    path = forge(tmp_path / "large", b"x" * 4096, blobs=[[digest(b"x" * 4096), 4096], ["xxh3-" + "0" * 32, 2**31 + 1]])

    with pytest.raises(DamagedBlob, match=f"wanted an integer from 1 to {2**31}"):
        ckstore.open_checkpoint(path)


def test_verify_does_not_read_what_is_larger_than_a_blob(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        path = store.path / "blobs" / "00" / ("xxh3-" + "0" * 32)
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(2**40)

        report = store.verify()

    assert any("more than a blob can have" in finding.what for finding in report.findings)
    assert report.checked_bytes == 0


def test_each_of_many_damaged_blobs_is_told_with_the_same_names(tmp_path: Path) -> None:
    count = 300
    path = forge(tmp_path / "many", b"x" * 4096, **named([tensor("", [4096]) for _ in range(count)]))
    with ckstore.open_checkpoint(path) as checkpoint:
        manifest: Manifest = checkpoint._directory.manifest
    extent = manifest.storages[0].extents[0]
    extents = tuple(extent._replace(blob=i) for i in range(count))
    blobs = tuple(BlobRecord(f"xxh3-{i:032x}", 4096) for i in range(count))
    wide = Manifest(
        **{
            **{name: getattr(manifest, name) for name in manifest.__slots__},
            "blobs": blobs,
            "storages": (StorageRecord(4096 * count, extents),),
        }
    )
    piece = (extent.piece, extent.offset, extent.length)

    teller = Teller(wide)
    found = [teller.damage(i, Checked("it is missing", {piece: "it is missing"})) for i in range(count)]

    assert [damage.blob for damage in found] == [blob.digest for blob in blobs]
    assert {len(damage.names) for damage in found} == {count}
    assert len({id(damage.names) for damage in found}) == 1


def test_a_small_checkpoint_that_names_one_blob_many_times_is_refused_beyond_what_the_caller_allows(
    tmp_path: Path,
) -> None:
    with Store.init(tmp_path / "store") as store:
        one = np.zeros(MIB, dtype=np.uint8)
        info = store.save({f"w{i}": one.copy() for i in range(64)}, step=1)
        assert info.new_bytes < 2 * MIB

        for mmap in (False, True):
            with pytest.raises(
                InsufficientSpace, match=rf"loads as 64\.0 MiB \({64 * MIB} bytes\), .* max_bytes={64 * MIB - 1}"
            ):
                store.load(1, max_bytes=64 * MIB - 1, mmap=mmap)
        with (
            store.open_checkpoint(1) as opened,
            pytest.raises(InsufficientSpace, match="load a part with select=, or raise max_bytes"),
        ):
            opened.load(max_bytes=0)
        with pytest.raises(BadInput, match="max_bytes must be a number of bytes, got '1GB'"):
            store.load(1, max_bytes="1GB")  # type: ignore[arg-type]
        assert len(store.load(1, max_bytes=64 * MIB)) == 64
        assert list(store.load(1, select="w7", max_bytes=MIB)) == ["w7"]


def test_no_tensor_slice_or_load_of_an_open_checkpoint_takes_more_than_the_caller_allows(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        zeros = np.zeros((64, MIB), dtype=np.uint8)  # one chunk on the disk, again and again
        store.save({"big": zeros, "turned": zeros.T, "small": np.arange(9)}, step=1)
        place = directory_of(store, 1)

        for opened in (store.open_checkpoint(1, max_bytes=MIB), ckstore.open_checkpoint(place, max_bytes=MIB)):
            with opened as checkpoint, pickle.loads(pickle.dumps(checkpoint)) as again:
                refused = rf"big of main@1 loads as 64\.0 MiB \({64 * MIB} bytes\), which is more than max_bytes={MIB}"
                for one in (checkpoint, again):
                    with pytest.raises(InsufficientSpace, match=refused) as found:
                        one["big"]
                    assert found.value.hint.startswith("slice() reads some rows of it, or raise max_bytes")
                with pytest.raises(InsufficientSpace, match=rf"big of main@1 loads as 2\.0 MiB \({2 * MIB} bytes\)"):
                    checkpoint.slice("big")[:2]
                with pytest.raises(InsufficientSpace, match="read fewer rows at once"):
                    checkpoint.slice("turned")[:1]
                with pytest.raises(InsufficientSpace, match="load a part with select="):
                    checkpoint.load()
                assert checkpoint["small"].tolist() == [*range(9)]
                assert checkpoint.slice("big")[3:4].shape == (1, MIB)
                assert len(checkpoint.load(select="big", max_bytes=64 * MIB)["big"]) == 64
        with pytest.raises(BadInput, match="max_bytes must be a number of bytes, got '1GB'"):
            store.open_checkpoint(1, max_bytes="1GB")  # type: ignore[arg-type]
