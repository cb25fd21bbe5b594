"""The trainer's side: the snapshot, the saver process, and the state of its saves. It accesses no store on disk."""
