"""The node of one machine: kubelet, Deployment, ReplicaSet and EndpointSlice controller in one process.

Lives here: turning Deployments into ReplicaSets, Pods, processes and EndpointSlices, and their states into statuses.
May not live here: what a Runtime or a Run is. Processes are forked by the supervisor (`embedded.supervisor`), which
outlives the node. The supervisor starts `main.main` next.
"""
