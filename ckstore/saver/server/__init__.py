"""The saver's side. It carries out orders one after another, and saves states from shared memory, without torch."""
