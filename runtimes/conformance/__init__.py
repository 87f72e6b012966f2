"""The conformance suite: whatever passes it is a Runtime (docs/runtime-contract.md).

It speaks to a server over its socket only and needs nothing but the contract: `krt conformance` runs it for anybody,
tests/conformance runs it over the built-in Runtimes. Each case names in its docstring the lines that it proves.
"""
