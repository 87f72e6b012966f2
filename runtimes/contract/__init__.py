"""The Runtime Server contract: frames, the multiplexed connection, message heads, limits, and a typed client.

A leaf: it imports the standard library and msgspec, so that the data plane and the Runtime Servers share it without
sharing anything else. `docs/runtime-contract.md` says the same for other languages.
"""
