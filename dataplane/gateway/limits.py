"""Every limit of the gateway, with its unit and the reason for its number.

Only numbers live here; those that other hops keep too are in `runtimes.contract.limits`. Whoever enforces one imports
it, so that a message and a check never disagree.
Next: `http1`, `bodies`, `connection`, `exchange`, `holding`, `arrivals`, `reviews`, `invoke`.
"""

from typing import Final

HEAD_MAX_BYTES: Final = 64 * 1024  # request line and fields together; 431 above
TARGET_MAX_BYTES: Final = 8 * 1024  # request target; 414 above
FIELD_MAX_BYTES: Final = 32 * 1024  # one field, name and value: tokens with many groups are long; 431 above
FIELDS_MAX: Final = 128  # fields of one head; 431 above
REPEATED_HEAD_MAX_BYTES: Final = 8 * 1024  # the last head of a connection, kept so that a repetition is not parsed
HEAD_TIMEOUT_S: Final = 10.0  # from the first byte of a head to its last; 408 after
BODY_TIMEOUT_S: Final = 30.0  # from the head to the last byte of the body; 408 after
CHUNK_LINE_MAX_BYTES: Final = 256  # a chunk's size line with its extensions
CHUNKS_MAX: Final = 16_384  # of one body: 64 bytes each for the largest; parsing one costs more than its bytes
TRAILER_MAX_BYTES: Final = 8 * 1024  # the trailer section of a chunked body, read and dropped
READ_BYTES: Final = 256 * 1024  # one read of a socket at most; one such buffer per process
PIPELINE_MAX: Final = 2  # parsed requests waiting on one connection, bodies in memory; then the socket is not read
AHEAD_READ_BYTES: Final = 16 * 1024  # one read of a socket at most while its connection's request is being answered
AHEAD_MAX_BYTES: Final = 64 * 1024 * 1024  # heads and bodies in memory of one process that nobody has asked for yet
AHEAD_HEAD_BYTES: Final = 8 * 1024  # an unfinished head may be this long while the limit above is reached; Overloaded

KEEPALIVE_S: Final = 180.0  # an idle client connection; above the 120 s promised, so that a pool gives up first
WRITE_TIMEOUT_S: Final = 30.0  # an answer that its client does not read; the connection is dropped after
UNREAD_BODY_MAX_BYTES: Final = 64 * 1024  # read before anybody asks for it, and behind an early answer; a longer rest
# behind one costs the connection
LINGER_S: Final = 2.0  # reading on after an early answer, so that the client can read it before a reset
CONNECTIONS_MAX: Final = 8192  # per process: about 40 KiB each with TLS; the idlest makes room for one more
LARGE_READ_BYTES: Final = 16 * 1024  # who has sent so much at once has made TLS keep buffers of up to 0.6 MiB
LARGE_CONNECTIONS_MAX: Final = 512  # such connections kept open; beyond, one ends behind its answer and they are freed
EVICTED_AT_ONCE: Final = 64  # idle connections that are closed then: looking for them costs as much as a handshake
RUN_INFLIGHT_MAX: Final = 80  # calls of one Run dispatched by one process: its owner takes 64, and some answers are on
# their way; TooManyInvocations above, so that a flood of one Run fills no connection that others share
INFLIGHT_MAX: Final = 4096  # calls in one process, held ones too; Overloaded above
INFLIGHT_BODY_MAX_BYTES: Final = 256 * 1024 * 1024  # request bodies in memory of one process; Overloaded above
ARRIVING_MAX: Final = 2048  # calls whose body is not all here: half of INFLIGHT_MAX; who has most makes room
ARRIVING_MAX_BYTES: Final = 192 * 1024 * 1024  # of their bodies: a quarter of all stays for whole ones
CALLER_ARRIVING_MAX: Final = (
    1024  # such calls of one caller, half of them; Overloaded above. Many clients send head and
)
# body apart, so that a burst of theirs is here for a moment
CALLER_ARRIVING_MAX_BYTES: Final = 96 * 1024 * 1024  # of their bodies, half of them
RUN_ARRIVING_MAX: Final = 256  # such calls of one Run, which takes 64; TooManyInvocations above
RUN_ARRIVING_MAX_BYTES: Final = 96 * 1024 * 1024  # of their bodies: more than RUN_INFLIGHT_MAX of the largest
ARRIVING_SLOW_S: Final = 1.0  # a body that is younger is not slow
ARRIVING_RATE_MIN: Final = 32 * 1024  # bytes a second; a slower one makes room: the largest, at 35 KiB/s, is in time
BODIES_FLOOD_BYTES: Final = (
    64 * 1024 * 1024
)  # once so many were in memory, what they used is given back when all are gone
BODIES_SETTLE_S: Final = 1.0  # how long none may be there before that

UNKNOWN_HOLD_S: Final = 1.0  # a UID never seen: how far a projection may lag behind a client's watch
UNKNOWN_HELD_PER_CALLER_MAX: Final = 16  # such calls of one caller at once; 404 at once above
MOVING_HOLD_S: Final = 10.0  # a moving Run's undispatched calls wait this long for the new owner, or their deadline
MOVING_HELD_MAX: Final = 1024  # such calls in one process; RunNotReady above

REVIEW_TTL_S: Final = 30.0  # an allowed decision
REVIEW_REFRESH_S: Final = 20.0  # one older than this is asked again in the background when it is used
REVIEW_AGAIN_S: Final = 1.0  # between two questions ahead of which the first was not answered
REVIEW_DENIED_TTL_S: Final = 5.0  # a refusal: short, because a grant is often on its way
REVIEW_TIMEOUT_S: Final = 5.0  # one review at the Kubernetes API
REVIEWS_IN_FLIGHT_MAX: Final = 256  # questions at once per kind: a flood of bad tokens must not reach the API whole
REVIEWS_MAX: Final = 100_000  # cached grants per kind; the oldest goes first
REVIEWS_DENIED_MAX: Final = (
    10_000  # cached refusals per kind, apart from the grants: bad tokens displace no good caller
)

MODE_TIMEOUT_S: Final = 1.0  # until a runtimed says whether a waiting Run is a function; RunNotReady after
MODE_PODS_MAX: Final = 2  # runtimeds that are asked, one after the other
ANSWER_GRACE_S: Final = 5.0  # beyond a call's deadline: the owner says then that the worker's process group is gone
CONNECT_SUSPECT_S: Final = 1.0  # an endpoint that refused a connection is not chosen for others' calls this long
OWNER_REPORT_S: Final = 30.0  # one report of an unreachable owner per Run and attempt in this time
DRAIN_MAX_S: Final = 310.0  # the longest call and its answer
