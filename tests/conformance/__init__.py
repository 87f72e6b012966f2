"""One suite for every Runtime: each test names the line of docs/runtime-contract.md that it proves (C1, C2, …)."""
