"""A randomised drill: pairs of faults strike training jobs, round after round (`python -m tests.drill`)."""
