"""`ctr model`: what a trained model is, what it has learnt, and its weights for other programs."""
