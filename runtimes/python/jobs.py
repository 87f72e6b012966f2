# ruff: noqa: PTH118, PTH120, PTH123, SIM115
# No worker has pathlib in memory for our sake.
"""What a child of the zygote does: wait for a job, then be a function's worker, a task, or another program.

Loaded by `zygote.py` under the *user's* interpreter: standard library only.
"""

from __future__ import annotations  # This runs on Python 3.9.

import atexit
import gc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import traceback
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from runtimes.python.channel import CHANNEL_FD, FAILED, OUR_FILES, STARTED, Channel, flush, getpid, leave
    from runtimes.python.function import refuse_constant, run_function
    from runtimes.python.loading import takes_context
    from runtimes.python.surroundings import prepare, prepare_imports, set_environment
else:
    from kruntimes_channel import CHANNEL_FD, FAILED, OUR_FILES, STARTED, Channel, flush, getpid, leave
    from kruntimes_function import refuse_constant, run_function
    from kruntimes_loading import takes_context
    from kruntimes_surroundings import prepare, prepare_imports, set_environment

BASH_CHANNEL_FD = 60
BASH_TOLD_FD = 61


def _get_ready() -> None:
    """What a child does before its job is known, so that it takes no time afterwards."""
    os.umask(0o077)
    # New objects: the zygote's remember what its descriptors were. What cannot be encoded is escaped, not raised.
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.dont_write_bytecode = True
    _rehearse()


def _rehearse() -> None:
    """Do once, for nothing, what a job will do: it copies the pages that will be written to, while nobody waits."""
    job = json.loads(json.dumps({"env": dict(os.environ, HOME="/", TMPDIR="/"), "list": ["/"] * 4, "number": [0, 0]}))
    set_environment(job["env"])
    path, main = sys.path[:], sys.modules["__main__"]
    prepare_imports([])
    sys.path[:] = path
    sys.modules["__main__"] = main
    empty = importlib.machinery.SourceFileLoader("rehearsal", os.devnull)
    spec = importlib.util.spec_from_file_location("rehearsal", os.devnull, loader=empty)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        empty.exec_module(module)
        exec(compile("import os\ndef invoke(request):\n    return request\n", "rehearsal", "exec"), module.__dict__)
        takes_context(module.invoke, "rehearsal.invoke")
    json.JSONDecoder(parse_constant=refuse_constant).decode(json.dumps({"a": [1.5, None, "x"]}, allow_nan=False))


def run_task(channel: Channel, job: dict[str, Any], sequence: int) -> NoReturn:
    """Run FILE as `python FILE ARGS` does, in this warm process, and end the process with the status that it gives."""
    path = os.path.join(job["root"], job["entrypoint"])
    folders = [os.path.dirname(path)]
    if folders[0] != job["root"]:
        folders.append(job["root"])
    main = prepare_imports(folders)
    sys.argv[:] = [job["entrypoint"], *job["args"]]
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    channel.send(STARTED, sequence)
    channel.close()
    owner = getpid()
    status = 0
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exit:
        status = _exit_status(exit.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FILES):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    del main
    if getpid() == owner:
        _finish_as_python_does(job["root"])
    else:
        flush()
    leave(status)


def _exit_status(code: Any) -> int:
    """What `sys.exit(code)` gives."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(str(code) + "\n")
    return 1


def _finish_as_python_does(root: str) -> None:
    """Wait for threads, run what atexit holds, let go of the user's modules (open files are written), flush.

    The interpreter's teardown does the same, then takes 5 ms to dismantle memory that is shared with the zygote.
    """
    threading = sys.modules.get("threading")
    for last in (getattr(threading, "_shutdown", None), atexit._run_exitfuncs):
        try:
            if last is not None:
                last()
        except BaseException:
            traceback.print_exc()
    flush()
    left = []
    for name, module in reversed(list(sys.modules.items())):
        if name == "__main__" or str(getattr(module, "__file__", "")).startswith(root + os.sep):
            del sys.modules[name]
            if isinstance(module, types.ModuleType):
                left.append(weakref.ref(module))
        del module
    gc.collect()
    for reference in left:
        remaining = reference()
        if remaining is not None:
            vars(remaining).clear()
    gc.collect()
    flush()


def run_exec(channel: Channel, job: dict[str, Any], sequence: int) -> int:
    """Become another program. It starts with the channel only if it is to speak on it (`channel` true), and with a pipe
    that holds what only it is `told`."""
    if job["channel"]:
        os.dup2(CHANNEL_FD, BASH_CHANNEL_FD, inheritable=True)
    if job["told"]:
        reader, writer = os.pipe()
        os.write(writer, job["told"].encode())
        os.close(writer)
        os.dup2(reader, BASH_TOLD_FD, inheritable=True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # What is ignored here stays ignored after exec.
    try:
        os.execvpe(job["argv"][0], job["argv"], os.environ)
    except OSError as error:
        channel.fail(
            FAILED, sequence, reason="RuntimeServerError", message="{}: {}".format(job["argv"][0], error.strerror)
        )
        return 127


def become(channel: Channel, enclosure: Any) -> int:
    """Wait for a job, then do it; returns the exit status."""
    _get_ready()
    enclosure.prepare()
    message = channel.receive()
    if message is None:
        leave(0)
    _, sequence, meta, _ = message
    job = json.loads(meta)
    gc.enable()
    try:
        prepare(job, enclosure)
    except OSError as error:
        channel.fail(FAILED, sequence, reason="RuntimeServerError", message=f"preparing the process: {error}")
        return 1
    run: Callable[[Channel, dict[str, Any], int], int] = {
        "function": run_function,
        "task": run_task,
        "exec": run_exec,
    }[job["kind"]]
    return run(channel, job, sequence)
