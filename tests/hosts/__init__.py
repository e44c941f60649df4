"""Hosts that are apart: network namespaces of this machine, joined by a switch of ours."""
