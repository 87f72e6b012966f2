"""Acting as somebody else (`kubectl --as`): who may, and who they then are.

Lives here: the Impersonate- headers. May not live here: rules (`rbac.py`). `server.py` asks once a request.
"""

import urllib.parse
from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDictProxy

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.identity import User
from controlplane.embedded.apiserver.rbac import Attributes, Authorizer

_EXTRA: Final = "impersonate-extra-"
_AUTHENTICATION: Final = "authentication.k8s.io"
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


def impersonated(authorizer: Authorizer, user: User, headers: CIMultiDictProxy[str]) -> User:
    """The user that a request acts as. Raises 400 for groups without a user, 403 for what the caller may not be."""
    if not any(name.lower().startswith("impersonate-") for name in headers):
        return user
    name, uid = headers.get("Impersonate-User", ""), headers.get("Impersonate-Uid", "")
    groups = tuple(headers.getall("Impersonate-Group", ()))
    extra = _extra(headers)
    if not name:
        raise errors.bad_request(f"requested {list(groups)!r} without impersonating a user")
    asked = [_who(name), *(Attributes("impersonate", resource="groups", name=group) for group in groups)]
    if uid:
        asked.append(Attributes("impersonate", _AUTHENTICATION, "uids", name=uid))
    for key, values in extra.items():
        asked += [Attributes("impersonate", _AUTHENTICATION, "userextras", key, name=value) for value in values]
    for attributes in asked:
        if not authorizer.allows(user, attributes):
            why = f'User "{user.name}" cannot impersonate resource "{attributes.target}"'
            raise errors.forbidden(attributes.resource, attributes.group, attributes.name, why)
    if not groups and name.startswith(_SERVICE_ACCOUNT):
        namespace = name.split(":")[2]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    everybody = () if "system:unauthenticated" in groups else ("system:authenticated",)
    return User(name, (*groups, *everybody), uid, extra)


def _who(name: str) -> Attributes:
    """The right that it takes to be a user: ServiceAccounts are objects, with a right of their own."""
    account = name.removeprefix(_SERVICE_ACCOUNT).split(":")
    if name.startswith(_SERVICE_ACCOUNT) and len(account) == 2:
        return Attributes("impersonate", resource="serviceaccounts", namespace=account[0], name=account[1])
    return Attributes("impersonate", resource="users", name=name)


def _extra(headers: CIMultiDictProxy[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for header, value in headers.items():
        if header.lower().startswith(_EXTRA):
            found.setdefault(urllib.parse.unquote(header[len(_EXTRA) :].lower()), []).append(value)
    return found
