"""The whole system on one machine: supervisor, API server and node.

Lives here: what a cluster would otherwise provide. May not live here: anything that a cluster installation also runs.
`controlplane.cli.up` calls `parent` next.
"""
