"""A training job: its setup and hold-out, training in memory or through a store, and its outcome."""
