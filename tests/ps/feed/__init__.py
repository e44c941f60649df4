"""Tests of `ctr.ps.feed`."""
