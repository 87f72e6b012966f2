"""The Runtime Server: one process in each Runtime Pod that holds functions and tasks and answers the contract.

`main` wires; `service` answers methods; `registry` keeps epochs; `function` and `task` hold one epoch each; `spawner`
has the zygote that makes every process. A language comes in as a `language.Language`.
"""
