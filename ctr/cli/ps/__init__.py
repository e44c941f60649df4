"""`ctr ps`: parameters that live in Redis."""
