"""A request as the API understands it: path to resource, verb, options.

Lives here: parsing of paths and query values. May not live here: HTTP transport, what a resource is. `server.py`
makes one of every HTTP request; `endpoints.py` reads it.
"""

import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.core_types import typed
from controlplane.embedded.apiserver.identity import User
from controlplane.embedded.apiserver.rbac import Attributes

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_NAMESPACE_SUBRESOURCES: Final = frozenset({"status", "finalize"})


class Target(msgspec.Struct, frozen=True):
    """What a path names. `resource` is empty for a path that is no resource (`/version`, `/apis`)."""

    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    tail: str = ""


def parse_path(path: str) -> Target:
    """`path` without its query, still percent-encoded."""
    parts = [urllib.parse.unquote(part) for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        version, rest, group = parts[1], parts[2:], ""
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Target()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    return Target(group, version, rest[0], subresource, namespace, name, "/".join(rest[3:]))


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The authorisation verb of a request on a resource."""
    if method in {"GET", "HEAD"}:
        if target.name and not _true(query.get("watch")):
            return "get"
        return "watch" if _true(query.get("watch")) else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verb = _VERBS.get(method)
    if verb in {"update", "patch"} and not target.name:
        raise errors.bad_request("name must be provided")
    if verb is None or (verb == "create" and target.name and not target.subresource):
        raise errors.method_not_allowed(method)
    return verb


class Call(msgspec.Struct, frozen=True):
    """One authenticated request on its way to an endpoint."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: User
    verb: str
    target: Target

    def flag(self, name: str) -> bool:
        return _true(self.query.get(name))

    def number(self, name: str, default: int) -> int:
        """A non-negative integer of the query; anything else is 400."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not text.isdigit():
            raise errors.bad_request(f'{name}: Invalid value: "{text}": must be a whole number, not negative')
        return int(text)

    @property
    def dry_run(self) -> bool:
        return _dry_run(self.query.get("dryRun", ""), self.options_kind)

    @property
    def options_kind(self) -> str:
        """What the options of this verb are called in refusals."""
        kinds = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
        return kinds.get(self.verb, "DeleteOptions")

    @property
    def manager(self) -> str:
        """The field manager: as named, else the first word of the user agent, as in Kubernetes."""
        named = self.query.get("fieldManager", "")
        if len(named) > 128 or not named.isprintable():
            raise errors.bad_request(f"fieldManager: Invalid value: {named!r}: at most 128 printable characters")
        return named or self.headers.get("User-Agent", "").split("/", 1)[0] or "unknown"

    @property
    def validation(self) -> str:
        value = self.query.get("fieldValidation") or "Warn"
        if value not in {"Strict", "Warn", "Ignore"}:
            supported = ("", "Ignore", "Strict", "Warn")
            raise errors.bad_option(self.options_kind, "fieldValidation", value, supported)
        return value

    @property
    def attributes(self) -> Attributes:
        target = self.target
        if not target.resource:
            return Attributes(self.method.lower(), path=urllib.parse.unquote(self.path))
        name = target.name
        if not name and self.verb in {"list", "watch", "deletecollection"}:
            name = _selected_name(self.query.get("fieldSelector", ""))
        return Attributes(self.verb, target.group, target.resource, target.subresource, target.namespace, name)


def decode_delete_options(body: bytes, query: Mapping[str, str]) -> dict[str, Any]:
    """metav1.DeleteOptions of a body, over those of the query. Raises 400 for what is none."""
    options: dict[str, Any] = {}
    if query.get("propagationPolicy"):
        options["propagationPolicy"] = query["propagationPolicy"]
    if query.get("orphanDependents"):
        options["orphanDependents"] = _true(query["orphanDependents"])
    grace = query.get("gracePeriodSeconds", "")
    if grace:
        if not grace.removeprefix("-").isdigit():
            raise errors.bad_request(f'gracePeriodSeconds: Invalid value: "{grace}": must be a whole number')
        options["gracePeriodSeconds"] = int(grace)
    if body.strip():
        try:
            decoded = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise errors.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
        options |= typed("meta.k8s.io", "DeleteOptions", decoded)
    return options


def delete_dry_run(options: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    asked = options.get("dryRun") or []
    return _dry_run(asked[0] if asked else query.get("dryRun", ""), "DeleteOptions")


def _dry_run(value: str, options: str) -> bool:
    if value not in {"", "All"}:
        raise errors.bad_option(options, "dryRun", [value], ("All",))
    return value == "All"


def _selected_name(selector: str) -> str:
    for term in selector.split(","):
        field, equals, value = term.partition("=")
        if field == "metadata.name" and equals:
            return value.removeprefix("=")
    return ""


def _true(value: str | None) -> bool:
    return value in {"true", "1", "True", "t"}
