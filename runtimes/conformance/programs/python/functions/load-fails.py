import sys

print("about to fail", file=sys.stderr)
raise RuntimeError("load failed on purpose")
