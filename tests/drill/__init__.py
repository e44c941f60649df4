"""The drill: faults strike training jobs, round after round, and a ledger proves what the store holds."""
