"""How a gateway tells recovery that nobody listens at an owner's address: as a Kubernetes Event on the Run.

The gateway emits it, recovery watches for it. The text names the epoch, so that a report which arrives late is about
nobody: it is compared, never parsed. A report proves nothing but silence; the worst that a forged one does is a
condition that the owner puts right.
"""

from typing import Final

from statemachine.reasons import Reason

REPORTER: Final = "kruntimes-gateway"  # the Events' reportingComponent
REASON: Final = Reason.OWNER_UNREACHABLE.value
SELECTOR: Final = f"reason={REASON},reportingComponent={REPORTER}"


def report_text(pod_uid: str, attempt: int) -> str:
    """The message of a report about the owner of this attempt."""
    return f"nobody listens at Pod {pod_uid}, the owner of attempt {attempt}"
