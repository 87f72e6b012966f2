"""Tests of the supervisor and the node."""
