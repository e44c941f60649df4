"""Parameters in Redis: requests, memory, training, plans, the board, and checkpoints."""
