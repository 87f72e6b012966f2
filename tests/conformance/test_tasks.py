"""The suite's cases of `runtimes.conformance.tasks`, unchanged, over each built-in Runtime."""

from runtimes.conformance import tasks
from tests.conformance.adopting import adopted

globals().update(adopted(tasks))
