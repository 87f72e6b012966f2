"""Resources that are questions: token and access reviews, and the token subresource of ServiceAccounts.

Lives here: reading the question, the answer's shape. May not live here: authentication and rules themselves.
`server.py` calls it for resources with a `review` and for `serviceaccounts/token`.
"""

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.embedded.apiserver import errors, identity, limits, meta, representation
from controlplane.embedded.apiserver.core_types import typed
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.identity import Authenticator, ServiceAccountTokens, User
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.rbac import MASTERS, Attributes, Authorizer
from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]


class Reviews:
    """Answers reviews; stores nothing."""

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        authorizer: Authorizer,
        tokens: ServiceAccountTokens,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._store = store
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._tokens = tokens
        self._now = now

    def answer(self, resource: Resource, call: Call) -> bytes:
        """The review with its status filled in. Raises 400 or 422 for a malformed question."""
        body = representation.decode_body(call.body, call.headers.get("Content-Type", ""))
        item = typed(resource.group, resource.kind, body)
        spec: Object = item.get("spec") or {}
        item |= {"apiVersion": resource.api_version, "kind": resource.kind}
        item.setdefault("metadata", {})
        match resource.review:
            case "TokenReview":
                item["status"] = self._token(spec)
            case "SelfSubjectReview":
                item["status"] = {"userInfo": call.user.as_object()}
            case "SelfSubjectRulesReview":
                item["status"] = self._rules(call.user, spec.get("namespace", ""))
            case "SelfSubjectAccessReview":
                item["status"] = self._access(resource, call.user, spec)
            case _:
                item["status"] = self._access(resource, _subject(resource, spec), spec)
        return msgspec.json.encode(item)

    def _token(self, spec: Object) -> Object:
        token = spec.get("token")
        if not token:
            raise errors.bad_request("token is required for TokenReview in authentication")
        asked = spec.get("audiences") or list(identity.API_AUDIENCES)
        found = self._authenticator.by_token(token, asked)
        if found is None:
            return {"user": {}, "error": "invalid bearer token, or one for other audiences"}
        return {"authenticated": True, "user": found.user.as_object(), "audiences": list(found.audiences)}

    def _access(self, resource: Resource, user: User, spec: Object) -> Object:
        asked: Object = spec.get("resourceAttributes") or {}
        path: Object = spec.get("nonResourceAttributes") or {}
        if bool(asked) is bool(path):
            message = "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified"
            cause = Cause("FieldValueInvalid", message, "spec.resourceAttributes")
            raise errors.invalid(resource.kind, resource.group, "", [cause])
        if asked:
            attributes = Attributes(
                asked.get("verb", ""),
                asked.get("group", ""),
                asked.get("resource", ""),
                asked.get("subresource", ""),
                asked.get("namespace", ""),
                asked.get("name", ""),
            )
        else:
            attributes = Attributes(path.get("verb", ""), path=path.get("path", ""))
        if self._authorizer.allows(user, attributes):
            return {"allowed": True, "reason": "RBAC: allowed"}
        return {"allowed": False, "reason": ""}

    def _rules(self, user: User, namespace: str) -> Object:
        rules = [*self._authorizer.rules(user, "")]
        if namespace:
            rules += self._authorizer.rules(user, namespace)
        resources = [rule.as_object() for rule in rules if not rule.paths]
        others = [rule.as_object() for rule in rules if rule.paths]
        if MASTERS in user.groups:
            resources.insert(0, {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
            others.insert(0, {"verbs": ["*"], "nonResourceURLs": ["*"]})
        return {"resourceRules": resources, "nonResourceRules": others, "incomplete": False}

    def issue_token(self, call: Call) -> bytes:
        """TokenRequest of a ServiceAccount. Raises 404 for the account, 409 or 400 for the Pod it is bound to."""
        target = call.target
        row = self._store.get(Key("/serviceaccounts", target.namespace, target.name))
        if row is None:
            raise errors.not_found("serviceaccounts", "", target.name)
        account = msgspec.json.decode(row.value)["metadata"]
        body = representation.decode_body(call.body, call.headers.get("Content-Type", ""))
        spec: Object = typed("authentication.k8s.io", "TokenRequest", body).get("spec") or {}
        seconds = spec.get("expirationSeconds") or limits.TOKEN_DEFAULT_SECONDS
        self._check_seconds(target.name, seconds)
        audiences = spec.get("audiences") or [identity.ISSUER]
        pod = self._bound_pod(call, spec.get("boundObjectRef"))
        if pod is not None and pod["account"] != target.name:
            why = f"cannot bind token for serviceaccount {target.name!r} to pod running with another serviceaccount"
            raise errors.bad_request(why)
        token, expires = self._tokens.issue(
            target.namespace,
            account,
            audiences=audiences,
            seconds=seconds,
            pod=None if pod is None else pod["metadata"],
        )
        at = datetime.datetime.fromtimestamp(expires, datetime.UTC)
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "creationTimestamp": meta.timestamp(self._now()),
            },
            "spec": {
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": meta.timestamp(at)},
        }
        return msgspec.json.encode(answer)

    def _check_seconds(self, name: str, seconds: int) -> None:
        why = ""
        if seconds < limits.TOKEN_MIN_SECONDS:
            why = "may not specify a duration less than 10 minutes"
        elif seconds > limits.TOKEN_MAX_SECONDS:
            why = "may not specify a duration larger than 2^32 seconds"
        if why:
            cause = Cause("FieldValueInvalid", f"Invalid value: {seconds}: {why}", "spec.expirationSeconds")
            raise errors.invalid("TokenRequest", "authentication.k8s.io", name, [cause])

    def _bound_pod(self, call: Call, reference: Object | None) -> Object | None:
        if not reference:
            return None
        if reference.get("kind") != "Pod":
            raise errors.bad_request(
                f"cannot bind token to object of kind {reference.get('kind')!r}: only Pods are supported"
            )
        name = reference.get("name", "")
        row = self._store.get(Key("/pods", call.target.namespace, name))
        if row is None:
            raise errors.not_found("pods", "", name)
        pod = msgspec.json.decode(row.value)
        if reference.get("uid") and reference["uid"] != pod["metadata"]["uid"]:
            why = (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record."
                " The object might have been deleted and then recreated"
            )
            raise errors.conflict("pods", "", name, why)
        return {"metadata": pod["metadata"], "account": pod["spec"].get("serviceAccountName", "default")}


def _subject(resource: Resource, spec: Object) -> User:
    if not spec.get("user") and not spec.get("groups"):
        cause = Cause(
            "FieldValueInvalid", "Invalid value: at least one of user or group must be specified", "spec.user"
        )
        raise errors.invalid(resource.kind, resource.group, "", [cause])
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
