"""Every limit of the invoke path and of the Runtime Server contract, with its unit and the reason for the number.

Only constants live here. Gateway, runtimed and Runtime Servers import them, so that one request meets one limit
wherever it is refused. `docs/runtime-contract.md` lists those that a Runtime in another language must keep.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1
"""Version of the contract that this build speaks; Hello negotiates it."""

# Invocations (spec section 4).
INVOKE_BODY_MAX_BYTES: Final = 1 * MIB
"""Request body: what a gateway keeps in memory for each of some thousand calls."""
INVOKE_RESULT_MAX_BYTES: Final = 1 * MIB
"""Answer: the same number as the body, so that one function may feed another."""
INVOCATION_ID_MAX_BYTES: Final = 128
"""Visible ASCII: it is written into headers and log lines as it is."""
INVOKE_TIMEOUT_DEFAULT_MS: Final = 30_000
INVOKE_TIMEOUT_MIN_MS: Final = 1
INVOKE_TIMEOUT_MAX_MS: Final = 300_000
"""The longest call: the termination grace of a Runtime Pod is 330 s, and must end after it."""
CONCURRENCY_MAX: Final = 64
"""Worker processes of one function: one for each invocation in flight."""
WORKER_WAIT_MAX_MS: Final = 2_000
"""How long a call waits for a worker that is being replaced before it is told WorkerStarting (L6)."""
REPLACEMENTS_MAX: Final = 3
"""Failed replacements in a row after which the registration is lost (L6)."""

# Registration and tasks.
REGISTER_TIMEOUT_MAX_MS: Final = 60_000
"""RegistrationTimedOut of spec section 2: the load may take what is left of it."""
HANDLER_MAX_BYTES: Final = 512
ENTRYPOINT_MAX_BYTES: Final = 4096
DIRECTORY_MAX_BYTES: Final = 4096
ARGS_MAX_COUNT: Final = 256
ARGS_MAX_BYTES: Final = 128 * KIB
ENV_MAX_COUNT: Final = 320
"""256 of the Run's and room for the KRUNTIME_* that runtimed adds."""
ENV_NAME_MAX_BYTES: Final = 256
ENV_VALUE_MAX_BYTES: Final = 32 * KIB
ENV_MAX_BYTES: Final = 192 * KIB
"""128 KiB of values by the API, their names, and what runtimed adds."""
OUTPUTS_MAX_COUNT: Final = 64
OUTPUT_KEY_MAX_BYTES: Final = 128
OUTPUT_VALUE_MAX_BYTES: Final = 4 * KIB
OUTPUTS_MAX_BYTES: Final = 32 * KIB
"""Task outputs go into a Run's status, hence into etcd."""
ARTIFACT_REFS_MAX_COUNT: Final = 64
"""Files of one task or one invocation: their references go into a Run's status, or into an answer."""
ARTIFACT_NAME_MAX_BYTES: Final = 255
"""Path of a file below the artifacts folder, as UTF-8: it becomes a part of a URI of at most 2,048 bytes."""
ARTIFACT_MAX_BYTES: Final = 256 * MIB
ARTIFACTS_TOTAL_MAX_BYTES: Final = 1024 * MIB
"""All files of one task or one invocation: they are on the Pod's work volume until they are stored."""
ARTIFACTS_FOLDER: Final = "artifacts"
"""Beside the source: what the Runtime Server hands over, one folder for each task or invocation."""
OUTPUTS_FILE_MAX_BYTES: Final = 256 * KIB
"""How much of $KRUNTIME_OUTPUTS is read: later assignments of a key win, so more than the sum may be written."""
TASK_GRACE_DEFAULT_MS: Final = 10_000
"""Between TERM and KILL of a cancelled task."""
STATUS_WAIT_MAX_MS: Final = 60_000
"""A waiting status call is answered by then, so that a lost wake-up cannot last."""

# Errors: what a caller is shown of a failure.
ERROR_MESSAGE_MAX_BYTES: Final = 4 * KIB
ERROR_FRAMES_MAX_COUNT: Final = 8
"""The last frames say where; the first ones are the runtime's."""
STDERR_TAIL_MAX_BYTES: Final = 2 * KIB

# Logs (spec section 6).
LOG_LINE_MAX_BYTES: Final = 16 * KIB
"""A longer line is cut, and its record says so."""
LOG_RECORD_BYTES: Final = 128
"""What a line takes in the file beside its text, at least: short lines are counted as they are stored."""
LOG_INVOCATION_MAX_BYTES: Final = 3 * MIB
"""What one invocation may log on each stream, as stored; a line then says that the rest was cut. Both together fit into
one Run's file, so that what is said to be there has not been rotated away by the same call."""
LOG_RUN_MAX_BYTES: Final = 8 * MIB
"""One Run's file; it is then moved to `<uid>.1.ndjson`, replacing the one there, so twice this is on disk."""
LOGS_MAX_COUNT: Final = 10_000
LOGS_TOTAL_MAX_BYTES: Final = 256 * MIB
"""All Runs of a Pod; the oldest files of Runs that are no longer held go first."""

# The wire (design decision 6).
CHUNK_MAX_BYTES: Final = 64 * KIB
"""Body bytes in one frame: a small answer waits behind at most one chunk of each large one."""
HEAD_MAX_BYTES: Final = 512 * KIB
"""A msgpack head: environment and arguments of a task are its largest."""
FRAME_MAX_BYTES: Final = HEAD_MAX_BYTES + CHUNK_MAX_BYTES + KIB
"""A whole frame, its header too."""
BODY_MAX_BYTES: Final = 2 * MIB
"""A whole body: above INVOKE_BODY_MAX_BYTES, so that too large is an answer and not a broken connection."""
CONNECTION_BYTES_MAX: Final = 160 * MIB
"""Bytes of unanswered requests, and bytes waiting to be written, on one connection; more is REFUSED. Twice what a
gateway sends of one Run, so that a flood of one leaves room for the others of its Pod."""
CONNECTION_STREAMS_MAX: Final = 4096
"""Unanswered requests on one connection; more is REFUSED."""
ASSEMBLING_BYTES_MAX: Final = 256 * MIB
"""Messages that have begun to arrive on one connection and are not whole; more ends the connection: answers are not
refused, so that a peer that is taken over could fill our memory with them."""
QUEUED_FRAMES_MAX: Final = 4 * CONNECTION_STREAMS_MAX
"""Answers that wait for a peer that does not read; one that goes on asking then loses its connection."""
READ_BYTES: Final = 256 * KIB
"""What one read takes at most: four chunks. Pages that are never used cost nothing."""
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB
"""What the transport buffers before frames wait in our queue, where they can be interleaved."""
CONNECT_TIMEOUT_MS: Final = 2_000

# The registry of epochs.
TOMBSTONES_MAX_COUNT: Final = CONNECTION_STREAMS_MAX
"""Run UIDs whose highest closed attempt is remembered, 0.3 KiB each; the oldest go first. UIDs are never used twice.
Only runtimed of this Pod calls: what it may still say of a closed attempt is a request that waits on its connection."""
HELD_MAX_COUNT: Final = 1024
"""Epochs held open in one Runtime Server: each is at least one process."""
