"""Input formats: each brings the rows of its files into blocks (see `block`)."""
