"""Rules of a store on a cluster filesystem: free after a grace."""
