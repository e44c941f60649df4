"""`ctr features`: from raw rows to a spec, and by it to hashed data sets."""
