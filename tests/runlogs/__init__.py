"""Logs and journals of Runs as an API: one machine, a cluster, and impostors."""
