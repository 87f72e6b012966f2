"""The built-in languages, given on to the tests that are particular to them."""

from runtimes.conformance.dialects import BASH, PYTHON, Dialect

__all__ = ["BASH", "PYTHON", "Dialect"]
