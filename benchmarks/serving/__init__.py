"""`ctr serve` beside a bare endpoint and its peers, live serving, and predictions of files."""
