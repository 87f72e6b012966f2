"""The control plane: scheduler, Runtime controller, recovery and certificates, the embedded Kubernetes API and `krt`.

`kube` is the one adapter to the Kubernetes API and the only part that `dataplane` may import.
"""
