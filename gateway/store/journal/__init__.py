"""Outcomes that the durable store has not taken yet, on this host's disk.

`base` is the contract. `journal` is that of a process, out of `file`, each in its `place` with its `schema` and `rows`.
Operators look in by `view` and `visit`.
"""
