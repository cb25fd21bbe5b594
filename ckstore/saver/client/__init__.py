"""The trainer's side of background saves: snapshots, the saver process and pending saves. It accesses no store."""
