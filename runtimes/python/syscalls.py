"""System calls that user code has no business with, refused by a seccomp filter: what Landlock has no rule for.

Loaded by `zygote.py` under the *user's* interpreter: standard library only. `restrict` is called in each child before
it has a job, and holds for all that it forks and for what these execute. Refused are

- changes of *another* process's limits, priority, scheduling and affinity: the kernel asks only for the same user, and
  one function could end the Runtime Server with a limit of 0 CPU seconds;
- a change of RLIMIT_RTTIME, the mark of a child: with another one its strays would not be found;
- new namespaces: in a user namespace a process has every capability again;
- keyrings: they are the user's, not the function's.

Everything else is allowed, and known to the kernel as such: it costs no run of the filter.
"""

from __future__ import annotations  # This runs on Python 3.9.

import ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # Instructions of classic BPF.
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # In struct seccomp_data.
_X32 = 0x40000000
RLIMIT_RTTIME = 15
NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

# name -> number on x86_64, on aarch64
_NUMBERS = {
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def filter_of(machine: str) -> list[Any]:
    """The program for a machine as the kernel names it; empty for one that is not known here."""
    if machine not in _MACHINES:
        return []
    column, architecture = _MACHINES[machine]
    no, yes, absent = [_answer(errno.EPERM)], [(_RETURN, 0, 0, _ALLOW)], [_answer(errno.ENOSYS)]
    own = _if_zero(0, _if_equal(1, RLIMIT_RTTIME, no, yes), no)
    blocks: dict[str, list[Any]] = {
        # The caller's own limits, or another's to look at only.
        "prlimit64": _if_zero(2, _if_zero(2, yes, own, high=True), own),
        "setrlimit": _if_equal(0, RLIMIT_RTTIME, no, yes),
        "clone": _if_any(0, NAMESPACES, no, yes),
        "clone3": absent,  # Its flags cannot be seen; the C library then takes clone.
        "unshare": _if_any(0, NAMESPACES, no, yes),
        "setns": no,
        "add_key": no,
        "request_key": no,
        "keyctl": no,
        # `which` is the user in one, and in the other: all processes of the user. Else only one's own.
        "setpriority": _if_equal(0, 2, no, _if_zero(1, yes, no)),
        "ioprio_set": _if_equal(0, 3, no, _if_zero(1, yes, no)),
    }
    for name in ("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr"):
        blocks[name] = _if_zero(0, yes, no)
    program = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, architecture), *absent, (_LOAD, 0, 0, _NUMBER_AT)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), *absent]
    for name, block in blocks.items():
        program += [(_EQUAL, 0, len(block), _NUMBERS[name][column]), *block]
    return program + yes


def _answer(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | error)


def _branch(
    code: int, value: int, argument: int, then: list[Any], otherwise: list[Any], high: bool = False
) -> list[Any]:
    """Both ends return."""
    at = _ARGUMENTS_AT + 8 * argument + (4 if high else 0)
    return [(_LOAD, 0, 0, at), (code, 0, len(then), value), *then, *otherwise]


def _if_zero(argument: int, then: list[Any], otherwise: list[Any], high: bool = False) -> list[Any]:
    return _branch(_EQUAL, 0, argument, then, otherwise, high)


def _if_equal(argument: int, value: int, then: list[Any], otherwise: list[Any]) -> list[Any]:
    return _branch(_EQUAL, value, argument, then, otherwise)


def _if_any(argument: int, bits: int, then: list[Any], otherwise: list[Any]) -> list[Any]:
    return _branch(_ANY_BIT, bits, argument, then, otherwise)


_FILTER = filter_of(os.uname().machine) if sys.byteorder == "little" else []
PROGRAM = b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
"""As the kernel takes it; empty on a machine that is not known here."""


def restrict(libc: Any) -> bool:
    """For this process and all below it; needs `no_new_privs`. False where kernel or machine have no such thing."""
    if not PROGRAM:
        return False
    buffer = ctypes.create_string_buffer(PROGRAM, len(PROGRAM))
    head = struct.pack("HP", len(PROGRAM) // 8, ctypes.addressof(buffer))
    return bool(libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), head, 0, 0) == 0)
