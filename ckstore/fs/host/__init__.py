"""Read facts about this host: its mounts, devices and memory, and the folders of the user."""
