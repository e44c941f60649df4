"""What a request carries: its body within the limits, then its rows as cells."""
