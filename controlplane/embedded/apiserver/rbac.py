"""What a user may do: RBAC over the stored Roles, ClusterRoles and their bindings.

Lives here: resolving and matching rules, with a cache that any change of an RBAC object empties. May not live here: the
default roles (`policy.py`). `server.py` asks once a request; `reviews.py` answers access reviews from it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver.hub import Shared
from controlplane.embedded.apiserver.identity import User
from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.selectors import from_label_selector
from controlplane.embedded.apiserver.store import Store

GROUP: Final = "rbac.authorization.k8s.io"
ROLES: Final = f"{GROUP}/roles"
ROLE_BINDINGS: Final = f"{GROUP}/rolebindings"
CLUSTER_ROLES: Final = f"{GROUP}/clusterroles"
CLUSTER_ROLE_BINDINGS: Final = f"{GROUP}/clusterrolebindings"
MASTERS: Final = "system:masters"
_CACHE_MAX_USERS: Final = 4_096
_ALL_ROWS: Final = 1_000_000


class Attributes(msgspec.Struct, frozen=True):
    """One question: a verb on a resource, or on a path when `resource` is empty."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def target(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rule(msgspec.Struct, frozen=True):
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()

    def allows(self, asked: Attributes) -> bool:
        if asked.verb not in self.verbs and "*" not in self.verbs:
            return False
        if not asked.resource:
            return any(_path_matches(path, asked.path) for path in self.paths)
        if asked.group not in self.groups and "*" not in self.groups:
            return False
        if not self._covers(asked):
            return False
        return not self.names or asked.name in self.names

    def _covers(self, asked: Attributes) -> bool:
        if "*" in self.resources or asked.target in self.resources:
            return True
        return bool(asked.subresource) and f"*/{asked.subresource}" in self.resources

    def as_object(self) -> dict[str, Any]:
        rule: dict[str, Any] = {"verbs": sorted(self.verbs)}
        if self.paths:
            rule["nonResourceURLs"] = list(self.paths)
        else:
            rule |= {"apiGroups": sorted(self.groups), "resources": sorted(self.resources)}
            if self.names:
                rule["resourceNames"] = sorted(self.names)
        return rule


def _path_matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def parse_rule(rule: Mapping[str, Any]) -> Rule:
    return Rule(
        frozenset(rule.get("verbs") or ()),
        frozenset(rule.get("apiGroups") or ()),
        frozenset(rule.get("resources") or ()),
        frozenset(rule.get("resourceNames") or ()),
        tuple(rule.get("nonResourceURLs") or ()),
    )


class Authorizer:
    """Answers from the stored objects. `forget` is told of every commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rules: dict[tuple[str, tuple[str, ...], str], tuple[Rule, ...]] = {}
        self._bindings: dict[str, list[dict[str, Any]]] = {}

    def forget(self, shared: Shared) -> None:
        if shared.record.key.resource.startswith(GROUP):
            self._rules.clear()
            self._bindings.clear()

    def allows(self, user: User, asked: Attributes) -> bool:
        if MASTERS in user.groups:
            return True
        if any(rule.allows(asked) for rule in self.rules(user, "")):
            return True
        return bool(asked.namespace) and any(rule.allows(asked) for rule in self.rules(user, asked.namespace))

    def covers(self, user: User, namespace: str, rule: Rule) -> bool:
        """Whether a user holds everything that a rule grants: nobody may grant more than they have."""
        if MASTERS in user.groups:
            return True
        held = self.rules(user, "") + (self.rules(user, namespace) if namespace else ())
        return all(any(_contains(one, single) for one in held) for single in _singles(rule))

    def rules(self, user: User, namespace: str) -> tuple[Rule, ...]:
        """The rules that bind a user in one namespace, or everywhere for the empty one."""
        key = (user.name, user.groups, namespace)
        found = self._rules.get(key)
        if found is None:
            if len(self._rules) >= _CACHE_MAX_USERS:
                self._rules.clear()
            found = self._rules[key] = self._resolve(user, namespace)
        return found

    def role_rules(self, namespace: str, reference: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The PolicyRules behind a roleRef; none when the role is absent."""
        cluster = reference.get("kind") == "ClusterRole"
        key = Key(CLUSTER_ROLES if cluster else ROLES, "" if cluster else namespace, reference.get("name", ""))
        row = self._store.get(key)
        if row is None:
            return []
        role = msgspec.json.decode(row.value)
        rules = list(role.get("rules") or ())
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            wanted = from_label_selector(selector)
            for other in self._objects(CLUSTER_ROLES, ""):
                labels = other["metadata"].get("labels") or {}
                if all(requirement.matches(labels) for requirement in wanted):
                    rules += other.get("rules") or ()
        return rules

    def _resolve(self, user: User, namespace: str) -> tuple[Rule, ...]:
        rules: list[Rule] = []
        for binding in self._objects(ROLE_BINDINGS if namespace else CLUSTER_ROLE_BINDINGS, namespace):
            if any(_is_subject(subject, user, namespace) for subject in binding.get("subjects") or ()):
                rules += [parse_rule(rule) for rule in self.role_rules(namespace, binding["roleRef"])]
        return tuple(rules)

    def _objects(self, resource: str, namespace: str) -> list[dict[str, Any]]:
        place = f"{resource}:{namespace}"
        found = self._bindings.get(place)
        if found is None:
            scope = namespace if namespace else None
            rows = self._store.page(resource, scope, after=("", ""), limit=_ALL_ROWS)
            found = self._bindings[place] = [msgspec.json.decode(row.value) for row in rows]
        return found


def _is_subject(subject: Mapping[str, Any], user: User, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            where = subject.get("namespace") or namespace
            return user.name == f"system:serviceaccount:{where}:{subject.get('name')}"
        case _:
            return False


def _singles(rule: Rule) -> list[Rule]:
    """A rule as rules of one verb on one resource or path each."""
    singles: list[Rule] = []
    for verb in rule.verbs:
        for path in rule.paths:
            singles.append(Rule(frozenset([verb]), paths=(path,)))
        for group in rule.groups:
            for resource in rule.resources:
                for name in rule.names or {""}:
                    names = frozenset([name]) if name else frozenset[str]()
                    singles.append(Rule(frozenset([verb]), frozenset([group]), frozenset([resource]), names))
    return singles


def _contains(held: Rule, single: Rule) -> bool:
    """Whether a held rule grants a single one."""
    if not (single.verbs <= held.verbs or "*" in held.verbs):
        return False
    if single.paths:
        return any(_path_matches(path, single.paths[0]) for path in held.paths)
    (resource,) = single.resources
    _, _, subresource = resource.partition("/")
    covered = resource in held.resources or "*" in held.resources
    if not covered and subresource:
        covered = f"*/{subresource}" in held.resources
    if not covered or not (single.groups <= held.groups or "*" in held.groups):
        return False
    return not held.names or bool(single.names and single.names <= held.names)
