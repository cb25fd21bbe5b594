#!/bin/sh
# torch_checkpointing 0.1.1: with its default storage, no small checkpoint can be saved to ext4 or XFS.
#
# `LocalFileSystemStorageConfig` opens files with O_DIRECT unless it is told otherwise. If a filesystem refuses the flag, it writes through the
# page cache. But ext4 and XFS accept the flag and refuse each write that is not a multiple of a block, and the last one of a file almost
# never is: the save ends in `OSError: [Errno 22] Invalid argument`. Reads have a fallback for that, writes have none. On tmpfs and btrfs,
# which take any length, the same save works, so tests in /dev/shm or in a container pass. `use_direct_io=False` saves everywhere.
#
# Seen: on ext4 and XFS the default fails with errno 22; with `use_direct_io=False` the checkpoint is loaded again.
set -eu
dir=$(mktemp -d -p "${FINDING_DIR:-/var/tmp}")
trap 'rm -rf "$dir"' EXIT
kind=$(stat -f -c %T "$dir")
case "$kind" in
ext2/ext3 | xfs) ;;
*) echo "set FINDING_DIR to a directory on ext4 or XFS: $dir is on $kind" && exit 1 ;;
esac
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torch_checkpointing==0.1.1'
cat > "$dir/try.py" <<'PY'
import errno
import os

import torch
import torch_checkpointing
from torch_checkpointing import CheckpointManager
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

print("torch_checkpointing", torch_checkpointing.__version__)
folder = os.environ["DIR"]
state = {"model": {"w": torch.arange(10.0)}, "step": 1}

try:
    CheckpointManager(CheckpointManager.Config.with_sync_save()).save(f"{folder}/default", state)
    raise SystemExit("it was saved: this has changed")
except OSError as error:
    print("default:", error)
    assert error.errno == errno.EINVAL

storage = LocalFileSystemStorageConfig(use_direct_io=False)
manager = CheckpointManager(CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage))
manager.save(f"{folder}/buffered", state)
target = {"model": {"w": torch.zeros(10)}, "step": 0}
loaded = manager.load(f"{folder}/buffered", target)
print("use_direct_io=False:", loaded["model"]["w"].tolist(), loaded["step"])
assert torch.equal(loaded["model"]["w"], torch.arange(10.0))
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
