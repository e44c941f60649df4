"""Training on one machine: speed, memory, start-up and accuracy."""
