"""The lifecycle of a Run as a pure state machine: no input or output, no clock, no randomness.

Start with `table.py` (every legal transition, one row each), then `step.py` (how a row is applied).
The shells that call this package are `controlplane` and `dataplane.runtimed`; `krt replay` folds their journals again.
"""
