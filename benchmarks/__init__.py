"""Speed and memory beside a peer, measured in one run: `make bench`."""
