"""Named limits of the API server, each with its unit and the reason for its number.

Lives here: numbers. May not live here: code that enforces them. Every module beside this one reads them next.
"""

from typing import Final

REQUEST_BODY_MAX_BYTES: Final = 3 * 1024 * 1024
"""Kubernetes' own limit of a decoded request body (`--max-request-bytes` of the generic API server)."""

OBJECT_MAX_BYTES: Final = 3 * 1024 * 1024 // 2
"""etcd refuses larger requests (1.5 MiB); objects that fit here then also fit on a cluster."""

ANNOTATIONS_MAX_BYTES: Final = 256 * 1024
"""Kubernetes' total of keys and values of the annotations of one object."""

CONFIG_DATA_MAX_BYTES: Final = 1024 * 1024
"""Kubernetes' bound on the data of one ConfigMap or Secret."""

NAME_MAX_CHARS: Final = 253
"""RFC 1123 subdomain, the longest name that Kubernetes takes."""

LABEL_NAME_MAX_CHARS: Final = 63
"""RFC 1123 label: namespaces, label values, the name part of a qualified name."""

GENERATED_NAME_SUFFIX_CHARS: Final = 5
"""As in Kubernetes: `generateName` plus five characters without vowels."""

GENERATED_NAME_TRIES: Final = 8
"""As in Kubernetes: a generated name that is taken is drawn anew this often before 409."""

JSON_PATCH_MAX_OPERATIONS: Final = 10_000
"""Kubernetes' bound on the operations of one JSON Patch."""

HISTORY_MAX_REVISIONS: Final = 10_000
"""Superseded revisions kept for watchers that reconnect: five minutes at 30 writes a second (etcd keeps by time)."""

HISTORY_MAX_BYTES: Final = 128 * 1024 * 1024
"""The same by size: Runs carry up to 128 KiB of source, and every status patch stores the object anew."""

COMPACTION_STEP_REVISIONS: Final = 500
"""Revisions compacted at once, so that one write never pays more than a few milliseconds for it."""

CHECKPOINT_AFTER_BYTES: Final = 16 * 1024 * 1024
"""Written between checkpoints of the write-ahead log (in a worker thread): bounds that file to a few tens of MiB."""

WRITE_AHEAD_MAX_BYTES: Final = 64 * 1024 * 1024
"""From this size on the writer itself finishes a checkpoint, so that the file begins anew: a storm of writes leaves the
worker thread always a few pages behind, and the file would grow for as long as it lasts."""

CHORE_RETRY_SECONDS: Final = 1.0
"""A chore that failed (the disk is full) is tried again after this; nothing is polled while all chores succeed."""

EVENT_PURGE_SECONDS: Final = 60.0
"""Old Events are looked for at most this often, and only when a new one comes."""

EVENT_PURGE_ROWS: Final = 500
"""Events looked at in one purge."""

SQLITE_CACHE_KIB: Final = 8 * 1024
"""Page cache of the writing connection; the kernel caches the file anyway."""

LIST_PAGE_ROWS: Final = 500
"""Rows read before the loop is yielded, so that a large list stops nobody else for more than milliseconds."""

WATCH_BUFFER_MAX_EVENTS: Final = 10_000
"""Events that wait for a slow watcher before its connection is closed; it then watches again from its last version."""

WATCH_BUFFER_MAX_BYTES: Final = 32 * 1024 * 1024
"""The same bound by size."""

WATCH_DEFAULT_TIMEOUT_SECONDS: Final = 3_600
"""When a watcher names none; Kubernetes draws 30 to 60 minutes."""

WATCH_MAX_TIMEOUT_SECONDS: Final = 24 * 3_600
"""A longer watch is ended then: its client watches on from the last version, as after any end."""

GRACE_MAX_SECONDS: Final = 10 * 365 * 24 * 3_600
"""A longer grace period is cut to ten years: the time it ends at must be one."""

WATCH_BOOKMARK_EVERY_REVISIONS: Final = 1_000
"""A quiet watcher is told this often how far the log went, by count and not by clock: an idle server does nothing."""

TOKEN_DEFAULT_SECONDS: Final = 3_600
"""TokenRequest without expirationSeconds, as in Kubernetes."""

TOKEN_MIN_SECONDS: Final = 600
"""Kubernetes refuses shorter ServiceAccount tokens."""

TOKEN_MAX_SECONDS: Final = 1 << 32
"""Kubernetes refuses longer ones."""

REQUEST_LOG_MAX_BYTES: Final = 16 * 1024 * 1024
"""One file of the request log; one rotated file is kept beside it."""

LOG_CHUNK_BYTES: Final = 64 * 1024
"""Read from a log file at once."""

LOG_FOLLOW_SECONDS: Final = 0.1
"""How often a followed log is looked at: only while a client follows it."""

EVENT_TTL_SECONDS: Final = 3_600
"""Kubernetes keeps Events for an hour."""

KEEPALIVE_SECONDS: Final = 600.0
"""Idle client connections are kept longer than any client's pool keeps them."""

SHUTDOWN_GRACE_SECONDS: Final = 5.0
"""How long requests in flight may take after SIGTERM; watches end at once."""

HEADER_FIELD_MAX_BYTES: Final = 32 * 1024
"""One header field or the request line: continue tokens and bearer tokens with many groups fit."""
