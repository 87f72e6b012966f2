"""The daemon of one Runtime Pod: it claims Runs, registers them at the Runtime Server and serves their calls.

Start with `decide.py` (what to do next for one Run, a pure function) and `adoption.py` (what a starting daemon makes of
what it finds); `worker.py` performs, `serving.py` answers calls, `main.py` wires.
"""
