"""The suite's cases of `runtimes.conformance.functions`, unchanged, over each built-in Runtime."""

from runtimes.conformance import functions
from tests.conformance.adopting import adopted

globals().update(adopted(functions))
