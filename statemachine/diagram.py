"""The table as pictures and prose: Mermaid state diagrams and Markdown, generated from the rows and never by hand.

`scripts/generate` writes docs/lifecycle.md and docs/reasons.md from here; `krt diagram` draws a Run's own path.
"""

from collections.abc import Sequence
from typing import Final

from statemachine.reasons import INFO, Reason
from statemachine.run import TERMINAL, Phase
from statemachine.table import TABLE, Row

_END: Final = "[*]"


def edges(rows: Sequence[Row] = TABLE) -> dict[tuple[Phase, Phase], list[str]]:
    """Every move between two different phases with the events that cause it, in table order."""
    found: dict[tuple[Phase, Phase], list[str]] = {}
    for row in rows:
        for source in row.sources:
            for choice in row.choices:
                if choice.to is not None and choice.to is not source:
                    names = found.setdefault((source, choice.to), [])
                    if row.event.__name__ not in names:
                        names.append(row.event.__name__)
    return found


def mermaid(path: Sequence[Phase] = ()) -> str:
    """The lifecycle as a Mermaid state diagram. The phases of `path` (a Run's own, in order) are highlighted."""
    lines = ["stateDiagram-v2", "    direction TB", f"    {_END} --> {Phase.PENDING}"]
    lines += [
        f"    {source} --> {_END if to is Phase.GONE else to}: {', '.join(names)}"
        for (source, to), names in edges().items()
    ]
    if path:
        lines += ["    classDef visited fill:#cfe8ff,stroke:#1f6feb,color:#0b3a75"]
        lines += [f"    class {phase} visited" for phase in dict.fromkeys(path) if phase is not Phase.GONE]
    return "\n".join(lines) + "\n"


def text(path: Sequence[Phase] = ()) -> str:
    """The lifecycle for a terminal: each phase with its ways out; visited phases are marked with *."""
    visited = set(path)
    lines: list[str] = []
    for phase in Phase:
        if phase is Phase.GONE:
            continue
        mark = "*" if phase in visited else " "
        ways = [(to, names) for (source, to), names in edges().items() if source is phase]
        lines.append(f"{mark} {phase}" + ("  (terminal)" if phase in TERMINAL else ""))
        lines += [f"      → {to:<11} {', '.join(names)}" for to, names in ways if phase not in TERMINAL]
    if path:
        lines += ["", "path: " + " → ".join(path)]
    return "\n".join(lines) + "\n"


def table_markdown() -> str:
    """The table as Markdown, one line a row."""
    lines = ["| from | event | to | who decides | only if | note |", "| --- | --- | --- | --- | --- | --- |"]
    for row in TABLE:
        sources = ", ".join(row.sources)
        targets = " · ".join(dict.fromkeys(str(choice.to) if choice.to else "(same)" for choice in row.choices))
        guards = ", ".join(f"`{guard.name}`" for guard in row.guards)
        lines.append(f"| {sources} | {row.event.__name__} | {targets} | {row.decider} | {guards} | {row.note} |")
    return "\n".join(lines) + "\n"


def guards_markdown() -> str:
    """Each guard with the sentence of its refusal."""
    seen = dict.fromkeys(
        guard for row in TABLE for guard in (*row.guards, *(g for choice in row.choices for g in choice.guards))
    )
    lines = ["| guard | an event is refused when |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{guard.name}` | {guard.sentence} |" for guard in seen)]) + "\n"


def lifecycle_markdown() -> str:
    """The whole of docs/lifecycle.md."""
    events = {row.event for row in TABLE}
    meanings = "\n".join(
        f"- **{event.__name__}**: {(event.__doc__ or '').strip()}" for event in sorted(events, key=lambda e: e.__name__)
    )
    return f"""<!-- Generated from statemachine/table.py by scripts/generate; edit the table, not this page. -->
# The lifecycle of a Run

A task goes Pending, Scheduled, Running and ends. A function goes Pending, Scheduled, Registering, Ready, and stays
there, called again and again, until it is deleted, cancelled, idle or out of time; then it is Releasing and ends.

```mermaid
{mermaid().rstrip()}
```

## Every legal transition

Whatever is not in this table is refused and changes nothing. `Observed` is no row: what the Kubernetes API shows is
adopted, over skipped phases too.

{table_markdown()}
## Events

{meanings}

## Guards

{guards_markdown()}"""


def reasons_markdown() -> str:
    """The whole of docs/reasons.md."""
    lines = [
        "<!-- Generated from statemachine/reasons.py by scripts/generate; edit the enum, not this page. -->",
        "# Reasons",
        "",
        "Every word a machine may read in a status, an Event or an error answer. The list is closed.",
        "`retryable`: of an answer, the call did not run and may work later; of a failure, it is retried by default.",
        "",
        "| reason | HTTP | `krt` exits | fault | retryable | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for reason in Reason:
        info = INFO[reason]
        http = str(info.http_status) if info.http_status else ""
        retryable = "yes" if info.retryable else "no"
        lines.append(f"| {reason} | {http} | {info.exit_code} | {info.fault} | {retryable} | {info.sentence} |")
    return "\n".join(lines) + "\n"
