"""`ctr models`: the versions of a registry."""
