"""Commands that score rows with a trained model: `ctr evaluate`, `calibrate`, `predict` and `explain`."""
