"""The saver's side: carries out orders one after another, and saves states in shared memory. It never imports torch."""
