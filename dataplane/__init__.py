"""The request path: the gateway, the runtimed of each Runtime Pod, and the wire between them.

May import `controlplane.kube`, nothing else of the control plane.
"""
