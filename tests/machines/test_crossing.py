"""Directories between which the kernel moves nothing: the error names the cause, and retention goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ckstore import CkstoreError, RetentionPolicy, SaveFailed, Store
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import require, require_program
from tests.support.stores import check_store


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Return a store with two checkpoints, in a lower layer of an overlay as upstream kernels mount it."""
    with loop_filesystem("ext4", 128, tmp_path) as mount:
        for name in ("lower", "upper", "work", "merged"):
            (mount / name).mkdir()
        with Store.init(mount / "lower/store") as store:
            for step in (0, 1):
                store.save({"w": np.full(100_000, step)}, step=step)
        layers = ",".join(f"{name}dir={mount / name}" for name in ("lower", "upper", "work"))
        command = ["mount", "-t", "overlay", "-o", f"redirect_dir=off,{layers}", "overlay", str(mount / "merged")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"cannot mount an overlay: {done.stderr}")
        try:
            yield mount / "merged/store"
        finally:
            subprocess.run(["umount", str(mount / "merged")], check=True)


@pytest.mark.root
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_retention_in_an_image_layer_drops_what_came_later_and_names_overlayfs(image: Path) -> None:
    with Store.open(image) as store:
        store.config.retention = RetentionPolicy(keep_last=1)
        warned: tuple[str, ...] = ()
        for step in (10, 11, 12):
            warned = store.save({"w": np.full(100_000, step)}, step=step).warnings

        assert [info.step for info in store.checkpoints()] == [0, 1, 12]
        assert "overlayfs cannot move a directory of a lower layer" in warned[0]
        assert warned[0].endswith("not dropped: main@0, main@1")
        with pytest.raises(CkstoreError, match=r"overlayfs cannot move a directory.*redirect_dir=on"):
            store.delete(0)
        found = {finding.what: finding for finding in store.doctor().findings}
        assert "cannot be deleted or compacted" in found["filesystem"].found
    check_store(image)


@pytest.mark.root
def test_a_save_into_a_run_with_a_project_of_its_own_names_the_projects(
    make_filesystem: Callable[[str, int], Path],
) -> None:
    require_program("xfs_io")
    place = make_filesystem("xfs", 300)
    with Store.init(place / "store") as store:
        store.save({"w": np.arange(1000)}, step=1, run="r")
        run = store.path / "checkpoints/r"
        subprocess.run(["xfs_io", "-x", "-c", "chproj 77", "-c", "chattr +P", str(run)], check=True)

        with pytest.raises(SaveFailed, match=rf"{run} has project id 77.*give the whole store one project id"):
            store.save({"w": np.arange(1001)}, step=2, run="r")
        found = {finding.what: finding for finding in store.doctor().findings}
        assert found["links"].level == "error"
        assert "checkpoints/r has project id 77" in found["links"].found

        subprocess.run(["xfs_io", "-x", "-c", "chproj 0", "-c", "chattr -P", str(run)], check=True)
        store.save({"w": np.arange(1001)}, step=2, run="r")
    check_store(place / "store")
