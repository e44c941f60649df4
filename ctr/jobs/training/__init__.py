"""A training job: setup, hold-out, training in memory or through a store, and the outcome."""
