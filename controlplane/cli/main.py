"""`krt`: the entry point. It repairs what a shell left closed and turns every end of a command into an exit code.

Nothing is imported here before it is needed, so that Ctrl-C in the first moments is quiet too. The commands are in
`commands`, which this file calls; what may go wrong and how it is told is in `failure`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells say it
BROKEN_PIPE: Final = 141  # 128 + SIGPIPE: the reader has gone, as after `| head`
DEBUG: Final = "KRT_DEBUG"  # set to anything: a defect shows its traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises nothing."""
    _repair_streams()
    if argv is None and not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")  # they are for whoever tests this, not for whoever uses it
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
        if argv is None:
            sys.unraisablehook = lambda _: None  # what was half made when it came has nothing to tell either
    except BrokenPipeError:
        code = BROKEN_PIPE
    except Exception as error:
        code = _told(error, args)
    _settle()
    return code


def _run(args: list[str]) -> int:
    from controlplane.cli.commands import run

    return run(args)


def _told(error: Exception, args: Sequence[str]) -> int:
    """Say what went wrong, and the exit code for it."""
    from controlplane.cli.failure import failure_of

    try:
        if os.environ.get(DEBUG):
            import traceback

            traceback.print_exception(error)
        sys.stdout.flush()
    except OSError:
        pass
    failure = failure_of(error)
    try:
        if wants_json(args):
            sys.stderr.write(failure.as_status().decode("utf-8", "replace").rstrip() + "\n")
        else:
            sys.stderr.write(failure.line() + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads stderr either; the exit code still tells
        pass
    return failure.code


def wants_json(args: Sequence[str]) -> bool:
    """Whether `-o json` is among the options, in any of its spellings: errors are Status objects then."""
    options = list(args[: args.index("--")] if "--" in args else args)
    pairs = zip(options, [*options[1:], ""], strict=True)
    return any(
        one in ("-ojson", "-o=json", "--output=json") or (one in ("-o", "--output") and following == "json")
        for one, following in pairs
    )


def _repair_streams() -> None:
    """Descriptors 0 to 2 exist, so that no socket becomes standard output, and text is UTF-8 whatever the locale."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor, not a path
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors=errors)


def _settle() -> None:
    """Flush, or give up what can no longer be written, so that the interpreter's own flush has nothing to say."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
