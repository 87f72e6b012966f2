"""The suite's cases of `runtimes.conformance.server`, unchanged, over each built-in Runtime."""

from runtimes.conformance import server
from tests.conformance.adopting import adopted

globals().update(adopted(server))
