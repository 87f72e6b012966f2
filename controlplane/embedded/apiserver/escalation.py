"""Nobody grants what they do not hold: the guard on writing roles and bindings.

Lives here: comparing a new grant with the rules of who writes it. May not live here: those rules (`rbac.py`).
`endpoints.py` gives the guard to the writes of RBAC objects.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.identity import User
from controlplane.embedded.apiserver.kinds import Object, Resource
from controlplane.embedded.apiserver.rbac import GROUP, MASTERS, Attributes, Authorizer, Rule, parse_rule

Guard = Callable[[Object, Object | None], None]


def guard(authorizer: Authorizer, user: User, resource: Resource) -> Guard | None:
    """What refuses (403) a write that grants more than its writer holds; None where nothing is granted."""
    if resource.group != GROUP or MASTERS in user.groups:
        return None
    if resource.plural.endswith("bindings"):
        return lambda item, old: _check_binding(authorizer, user, resource, item, old)
    return lambda item, old: _check_role(authorizer, user, resource, item, old)


def _check_role(authorizer: Authorizer, user: User, resource: Resource, item: Object, old: Object | None) -> None:
    grants = ("rules", "aggregationRule")
    if old is not None and all(item.get(field) == old.get(field) for field in grants):
        return
    namespace, name = item["metadata"].get("namespace", ""), item["metadata"]["name"]
    if authorizer.allows(user, Attributes("escalate", GROUP, resource.plural, "", namespace, name)):
        return
    rules: list[Mapping[str, Any]] = list(item.get("rules") or ())
    if item.get("aggregationRule"):
        rules.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
    _check(authorizer, user, resource, item, rules)


def _check_binding(authorizer: Authorizer, user: User, resource: Resource, item: Object, old: Object | None) -> None:
    if old is not None and item.get("subjects") == old.get("subjects"):
        return
    namespace, reference = item["metadata"].get("namespace", ""), item["roleRef"]
    plural = "clusterroles" if reference.get("kind") == "ClusterRole" else "roles"
    if authorizer.allows(user, Attributes("bind", GROUP, plural, "", namespace, str(reference.get("name")))):
        return
    _check(authorizer, user, resource, item, authorizer.role_rules(namespace, reference))


def _check(
    authorizer: Authorizer, user: User, resource: Resource, item: Object, rules: Iterable[Mapping[str, Any]]
) -> None:
    namespace = item["metadata"].get("namespace", "")
    beyond = [rule for rule in map(parse_rule, rules) if not authorizer.covers(user, namespace, rule)]
    if beyond:
        why = (
            f'user "{user.name}" (groups={list(user.groups)}) is attempting to grant RBAC permissions'
            f" not currently held: {', '.join(map(_shown, beyond))}"
        )
        raise errors.forbidden(resource.plural, GROUP, item["metadata"]["name"], why)


def _shown(rule: Rule) -> str:
    return "{" + ", ".join(f"{name}:{value}" for name, value in rule.as_object().items()) + "}"
