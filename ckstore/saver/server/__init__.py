"""In the saver: takes orders one after another and saves what lies in shared memory. It never imports torch."""
