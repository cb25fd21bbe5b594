"""What the kernel says about this host: mounts, devices, memory, folders of the user."""
