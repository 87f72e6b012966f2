"""Follows what a cluster publishes of its client CAs: ConfigMap kube-system/extension-apiserver-authentication.

Here: which object that is, and its data as it changes. What a CA in it is good for, the gateway's `clientca` and the
control plane's `runlogs.frontproxy` decide.
"""

from collections.abc import Callable, Mapping
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import CONFIGMAPS
from controlplane.kube.types import ConfigMap

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"
FIELDS: Final = f"metadata.name={NAME}"


def cluster_cas(kube: Kube, clock: Clock, changed: Callable[[Mapping[str, str]], None]) -> Informer[ConfigMap]:
    """An informer that tells the data, at first and at each change; empty once the object is gone."""

    def on_change(change: Change[ConfigMap]) -> None:
        changed(change.current.data if change.current is not None else {})

    return Informer(kube, CONFIGMAPS, namespace=NAMESPACE, fields=FIELDS, on_change=on_change, clock=clock)
