"""Named limits of the node, each with its unit and the reason for its number.

Lives here: numbers. May not live here: code that enforces them. Every module beside this one reads them next.
"""

from typing import Final

RESTART_FIRST_SECONDS: Final = 0.1
RESTART_MAX_SECONDS: Final = 10.0
"""A container that ends is restarted after 0.1 s, doubling to 10 s: a killed one is back within the second."""

RESTART_RESET_SECONDS: Final = 10.0
"""A container that ran this long starts with a clean slate."""

SETUP_RETRY_FIRST_SECONDS: Final = 0.05
SETUP_RETRY_MAX_SECONDS: Final = 2.0
"""Volumes that are not there yet (a ConfigMap that its controller is about to make) are looked for again this often."""

WRITE_RETRY_FIRST_SECONDS: Final = 0.1
WRITE_RETRY_MAX_SECONDS: Final = 5.0
"""A write that the API did not take is tried again after this; below the 10 s in which a killed API server heals."""

GRACE_DEFAULT_SECONDS: Final = 30.0
"""Of a Pod that names no terminationGracePeriodSeconds, as in Kubernetes."""

SIDECAR_GRACE_MIN_SECONDS: Final = 2.0
"""What a sidecar gets even when the containers used up all of the grace, as in Kubernetes."""

PROBE_GRACE_DEFAULT_SECONDS: Final = 10.0
"""Between SIGTERM and SIGKILL of a container whose liveness probe failed and names no grace of its own."""

TOKEN_RENEW_AT: Final = 0.8
"""The part of a projected token's life after which it is renewed, as in Kubernetes."""

PODS_MAX: Final = 250
"""Addresses .2 to .251 of the Pod network; also more Pods than one machine wants."""

JOURNALS_KEPT: Final = 64
"""Journals of Pods that are gone, the newest ones: enough to look back on a day of rollouts."""

SOCKET_PATH_MAX_BYTES: Final = 104
"""Linux takes 108 bytes with the NUL; the contract keeps 104 so that clients elsewhere work alike."""

REVISION_HISTORY_DEFAULT: Final = 10
"""ReplicaSets without Pods that a Deployment keeps, as in Kubernetes."""

CREATE_SEEN_SECONDS: Final = 5.0
"""A Pod that was created but not seen in the watch for this long is no longer counted: it was deleted in between."""

STATUS_MESSAGE_MAX_CHARS: Final = 1_024
"""Of one message in a Pod's status."""
