"""Runtime Servers: the processes that hold a user's code, and the contract by which runtimed speaks to them.

`contract` is a leaf that every other package may import; `server` is the process; `python` and `bash` know a language.
Nothing here knows Kubernetes, the lifecycle of a Run, or the network beyond this Pod.
"""
