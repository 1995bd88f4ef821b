"""Tests of the edge: what a client gets to see over its connection."""
