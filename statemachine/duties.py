"""What a process owes a Run in the state it now shows: timers and work, derived from the state alone.

`step` returns these when a process first sees a Run or sees it in a new state. They are a function of what the API
says, so a process that restarts at any moment takes up exactly what it left. Nothing here writes to the API.
"""

from statemachine import commands as cmd
from statemachine.events import Role
from statemachine.run import CLAIM_TIMEOUT_MS, REGISTRATION_TIMEOUT_MS, TERMINAL, Phase, Run


def duties(previous: Run | None, run: Run, role: Role, at_us: int) -> tuple[cmd.Command, ...]:
    """The commands that the change from `previous` (None: first sight) to `run` asks of a process of this role."""
    if previous is not None and _key(previous) == _key(run):
        return ()
    owed = _control_plane(run, at_us) if role is Role.CONTROL_PLANE else _runtimed(run)
    armed = {command.timer for command in owed if isinstance(command, cmd.SetTimer)}
    before: tuple[cmd.Command, ...] = ()
    if previous is not None:
        before = _control_plane(previous, at_us) if role is Role.CONTROL_PLANE else _runtimed(previous)
    dropped = [
        cmd.DropTimer(command.timer)
        for command in before
        if isinstance(command, cmd.SetTimer) and command.timer not in armed
    ]
    return (*dropped, *owed)


def _key(run: Run) -> object:
    status = run.status
    return run.phase, status.attempt, status.pod_uid, status.next_attempt_us, run.spec.ttl_ms, run.deleting


def _control_plane(run: Run, at_us: int) -> tuple[cmd.Command, ...]:
    match run.phase:
        case Phase.PENDING if run.status.next_attempt_us is not None:
            return (cmd.SetTimer(cmd.Timer.BACKOFF, run.status.next_attempt_us),)
        case Phase.SCHEDULED:
            # From first sight, not from the binding: time in which this process did not look proves nothing.
            return (cmd.SetTimer(cmd.Timer.CLAIM, at_us + CLAIM_TIMEOUT_MS * 1000),)
        case phase if phase in TERMINAL and run.spec.ttl_ms is not None and not run.deleting:
            done = run.status.completion_us if run.status.completion_us is not None else at_us
            return (cmd.SetTimer(cmd.Timer.TTL, done + run.spec.ttl_ms * 1000),)
        case _:
            return ()


def _runtimed(run: Run) -> tuple[cmd.Command, ...]:
    epoch, start = run.epoch, run.status.start_us
    if epoch is None:
        return ()
    lifetime: tuple[cmd.Command, ...] = ()
    if run.spec.lifetime_ms is not None and start is not None:
        lifetime = (cmd.SetTimer(cmd.Timer.LIFETIME, start + run.spec.lifetime_ms * 1000),)
    match run.phase:
        case Phase.REGISTERING:
            due_us = (start or 0) + REGISTRATION_TIMEOUT_MS * 1000
            return (cmd.Register(epoch), cmd.SetTimer(cmd.Timer.REGISTRATION, due_us), *lifetime)
        case Phase.RUNNING:
            return (cmd.Execute(epoch), *lifetime)
        case Phase.READY:
            return lifetime
        case Phase.RELEASING:
            return (cmd.ReleaseEpoch(epoch),)
        case _:
            return ()
