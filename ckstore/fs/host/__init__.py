"""Facts about this host from the kernel: mounts, devices, memory, folders of the user."""
