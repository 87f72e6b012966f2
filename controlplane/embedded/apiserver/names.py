"""What may be a name, a label, an annotation: Kubernetes' rules as functions that return what is wrong.

Lives here: syntax, with Kubernetes' messages. May not live here: where a value stands in an object (`meta.py` asks
next).
"""

import re
import secrets
from typing import Final

from controlplane.embedded.apiserver import limits

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_RFC1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"

_LABEL_MESSAGE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_MESSAGE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_RFC1035_MESSAGE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    " '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_MESSAGE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_MESSAGE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def wrong_label(name: str) -> list[str]:
    """RFC 1123 label: namespaces."""
    wrong = [] if len(name) <= limits.LABEL_NAME_MAX_CHARS else [_longer_than(limits.LABEL_NAME_MAX_CHARS)]
    return wrong if _LABEL.match(name) else [*wrong, _LABEL_MESSAGE]


def wrong_subdomain(name: str) -> list[str]:
    """RFC 1123 subdomain: most names."""
    wrong = [] if len(name) <= limits.NAME_MAX_CHARS else [_longer_than(limits.NAME_MAX_CHARS)]
    return wrong if _SUBDOMAIN.match(name) else [*wrong, _SUBDOMAIN_MESSAGE]


def wrong_rfc1035(name: str) -> list[str]:
    """RFC 1035 label: Services."""
    wrong = [] if len(name) <= limits.LABEL_NAME_MAX_CHARS else [_longer_than(limits.LABEL_NAME_MAX_CHARS)]
    return wrong if _RFC1035.match(name) else [*wrong, _RFC1035_MESSAGE]


def wrong_path_segment(name: str) -> list[str]:
    """RBAC objects: whatever can stand in a path."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{character}'" for character in "/%" if character in name]


def wrong_qualified(name: str) -> list[str]:
    """Keys of labels and annotations, finalizers: `[prefix/]name`."""
    prefix, slash, rest = name.rpartition("/")
    wrong: list[str] = []
    if slash:
        if not prefix:
            wrong.append("prefix part must be non-empty")
        elif not _SUBDOMAIN.match(prefix) or len(prefix) > limits.NAME_MAX_CHARS:
            wrong.append(f"prefix part {_SUBDOMAIN_MESSAGE}")
    if not rest:
        wrong.append("name part must be non-empty")
    elif len(rest) > limits.LABEL_NAME_MAX_CHARS:
        wrong.append(f"name part must be no more than {limits.LABEL_NAME_MAX_CHARS} characters")
    if not _QUALIFIED.match(rest):
        wrong.append(_QUALIFIED_MESSAGE)
    return wrong


def wrong_label_value(value: str) -> list[str]:
    wrong = [] if len(value) <= limits.LABEL_NAME_MAX_CHARS else [_longer_than(limits.LABEL_NAME_MAX_CHARS)]
    return wrong if _LABEL_VALUE.match(value) else [*wrong, _LABEL_VALUE_MESSAGE]


def generated(prefix: str) -> str:
    """A name from `generateName`, cut so that the whole stays a label as Kubernetes does."""
    room = limits.LABEL_NAME_MAX_CHARS - limits.GENERATED_NAME_SUFFIX_CHARS
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(limits.GENERATED_NAME_SUFFIX_CHARS))
    return prefix[:room] + suffix


def _longer_than(limit: int) -> str:
    return f"must be no more than {limit} characters"
