"""ctr beside its peers on the same rows: `make bench-peers`, which writes docs/benchmarks.md."""

from benchmarks.peers.run import measure
