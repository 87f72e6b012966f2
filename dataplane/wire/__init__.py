"""The internal network hop: mutually authenticated TLS connections that carry multiplexed invoke calls.

Here: identities, the pool, the listener, the message heads. Not here: framing (`runtimes.contract.mux`), routing.
"""
