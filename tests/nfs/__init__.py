"""Real NFS for tests: a kernel that runs as a process, and in it a server and two clients (`tests.nfs.machine`)."""
