"""A real Kubernetes of one node on this machine, for tests: `scripts/cluster` is its door.

`machine` puts the parts in order: binaries, namespaces, certificates, configuration, processes. Nothing of the product
imports this, and it imports nothing of the product.
"""
