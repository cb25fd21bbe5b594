"""What the kernel tells of this host: mounts, devices, memory, folders of the user."""
