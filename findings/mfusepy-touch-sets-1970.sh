#!/bin/sh
# mfusepy 3.1.1: `touch FILE` on a filesystem made with it sets the file's times to the first seconds of 1970.
#
# For "set to now" the kernel passes UTIME_NOW (2**30 - 1) as the nanoseconds. mfusepy does not translate it: `utimens` gets
# 1.073741823 s since 1970 as an ordinary time, and cannot tell it from one that was asked for. A program that renews times by
# `os.utime(path)` or `touch` so makes every file 56 years old; explicit times are passed on correctly.
#
# Seen: a file with `touch -d @1700000000` has that time; after `touch` alone it has 1.
# Needs /dev/fuse, fusermount3 and libfuse3.
set -eu
dir=$(mktemp -d)
trap 'fusermount3 -u "$dir/mnt" 2>/dev/null || true; rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mfusepy==3.1.1'
cat > "$dir/fs.py" <<'PY'
import os
import stat
import sys

os.environ["FUSE_LIBRARY_NAME"] = "fuse3"
import mfusepy


class OneFile(mfusepy.Operations):
    times = (0.0, 0.0)

    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path == "/file":
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_atime": self.times[0], "st_mtime": self.times[1]}
        raise OSError(2, "no such file")

    def readdir(self, path, fh):
        return [".", "..", "file"]

    def utimens(self, path, times=None):
        self.times = times


mfusepy.FUSE(OneFile(), sys.argv[1], foreground=True, nothreads=True)
PY
mkdir "$dir/mnt"
"$dir/venv/bin/python" "$dir/fs.py" "$dir/mnt" &
i=0
until mountpoint -q "$dir/mnt"; do i=$((i + 1)); [ "$i" -lt 100 ] || { echo "not mounted"; exit 1; }; sleep 0.1; done
touch -c -d @1700000000 "$dir/mnt/file"
asked=$(stat -c %Y "$dir/mnt/file")
touch -c "$dir/mnt/file"
now=$(stat -c %Y "$dir/mnt/file")
echo "touch -d @1700000000: $asked; touch: $now"
[ "$asked" = 1700000000 ] && [ "$now" = 1 ]
