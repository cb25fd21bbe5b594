"""The saver's side of background saves. It saves states from shared memory, one after another, without torch."""
