"""Who asks: users, and how a bearer token becomes one.

Lives here: static tokens, ServiceAccount tokens (signed JWTs bound to stored objects). May not live here: what a user
may do (`rbac.py`). `server.py` asks once a request; `reviews.py` for TokenReview and TokenRequest.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.store import Store

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
API_AUDIENCES: Final = (ISSUER, "https://kubernetes.default.svc")
STATIC_AUDIENCES: Final = (*API_AUDIENCES, "kruntimes")
"""Tokens of files are this installation's own: its gateway takes them too."""

POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"
CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
_KEY_BYTES: Final = 32


class User(msgspec.Struct, frozen=True):
    """An authenticated caller, as in authentication.k8s.io UserInfo."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = {}

    def as_object(self) -> dict[str, Any]:
        info: dict[str, Any] = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            info["uid"] = self.uid
        if self.extra:
            info["extra"] = {name: list(values) for name, values in self.extra.items()}
        return info


ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))


class Authenticated(msgspec.Struct, frozen=True):
    """A user and the audiences that the credential is good for."""

    user: User
    audiences: tuple[str, ...]


class StaticTokens:
    """Tokens of files in one directory: `admin` holds the administrator's token alone, `*.json` {token, user, groups}.

    The directory is read again when a token is unknown and the directory changed since.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._users: dict[bytes, User] = {}
        self._read_at = -1

    def find(self, token: str) -> User | None:
        digest = hashlib.sha256(token.encode()).digest()
        found = self._users.get(digest)
        if found is None and self._changed():
            self._read()
            found = self._users.get(digest)
        return found

    def _changed(self) -> bool:
        try:
            return self._directory.stat().st_mtime_ns != self._read_at
        except OSError:
            return False

    def _read(self) -> None:
        self._read_at = self._directory.stat().st_mtime_ns
        users: dict[bytes, User] = {}
        for path in sorted(self._directory.iterdir()):
            try:
                text = path.read_text().strip()
                if path.name == "admin":
                    entry: dict[str, Any] = {"token": text, "user": "admin", "groups": ["system:masters"]}
                elif path.suffix == ".json":
                    entry = msgspec.json.decode(text)
                else:
                    continue
                groups = tuple(dict.fromkeys((*entry.get("groups", ()), "system:authenticated")))
                token = entry["token"]
                if token:
                    users[hashlib.sha256(token.encode()).digest()] = User(entry["user"], groups)
            except (OSError, ValueError, KeyError, msgspec.DecodeError):
                continue
        self._users = users


class ServiceAccountTokens:
    """Issues and checks ServiceAccount tokens: JWTs signed with a key that never leaves the data directory."""

    def __init__(self, key: bytes, store: Store, now: Callable[[], float]) -> None:
        self._key = key
        self._store = store
        self._now = now

    def issue(
        self,
        namespace: str,
        account: Mapping[str, Any],
        *,
        audiences: Sequence[str],
        seconds: int,
        pod: Mapping[str, Any] | None = None,
    ) -> tuple[str, int]:
        """A token and its expiry in Unix seconds. `account` and `pod` are decoded metadata."""
        now = int(self._now())
        bound: dict[str, Any] = {
            "namespace": namespace,
            "serviceaccount": {"name": account["name"], "uid": account["uid"]},
        }
        if pod is not None:
            bound["pod"] = {"name": pod["name"], "uid": pod["uid"]}
        claims = {
            "aud": list(audiences),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": secrets.token_hex(16),
            "kubernetes.io": bound,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{account['name']}",
        }
        signed = _segment({"alg": "HS256", "typ": "JWT"}) + b"." + _segment(claims)
        return (signed + b"." + _base64(self._signature(signed))).decode(), now + seconds

    def find(self, token: str) -> Authenticated | None:
        """The ServiceAccount's user while the token, the account and the Pod it is bound to are all still there."""
        claims = self._verified(token)
        if claims is None or not claims["nbf"] - 60 <= self._now() < claims["exp"]:
            return None
        bound = claims["kubernetes.io"]
        namespace, account = bound["namespace"], bound["serviceaccount"]
        if not self._exists("/serviceaccounts", namespace, account):
            return None
        extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
        pod = bound.get("pod")
        if pod is not None:
            if not self._exists("/pods", namespace, pod):
                return None
            extra |= {POD_NAME: (pod["name"],), POD_UID: (pod["uid"],)}
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return Authenticated(User(claims["sub"], groups, account["uid"], extra), tuple(claims["aud"]))

    def _exists(self, resource: str, namespace: str, bound: Mapping[str, str]) -> bool:
        row = self._store.get(Key(resource, namespace, bound["name"]))
        return row is not None and bool(msgspec.json.decode(row.value)["metadata"]["uid"] == bound["uid"])

    def _verified(self, token: str) -> dict[str, Any] | None:
        signed, _, signature = token.encode().rpartition(b".")
        if signed.count(b".") != 1 or not hmac.compare_digest(_base64(self._signature(signed)), signature):
            return None
        claims: dict[str, Any] = msgspec.json.decode(_unbase64(signed.split(b".")[1]))
        return claims

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, "sha256")


class Authenticator:
    """Any bearer token to a user."""

    def __init__(self, static: StaticTokens, accounts: ServiceAccountTokens) -> None:
        self._static = static
        self._accounts = accounts

    def by_token(self, token: str, audiences: Sequence[str] = API_AUDIENCES) -> Authenticated | None:
        """None when the token is unknown, expired, or good for none of the audiences; else those it is good for."""
        user = self._static.find(token)
        found = Authenticated(user, STATIC_AUDIENCES) if user else self._accounts.find(token)
        if found is None:
            return None
        shared = tuple(audience for audience in audiences if audience in found.audiences)
        return Authenticated(found.user, shared) if shared else None


def signing_key(path: Path) -> bytes:
    """The key of ServiceAccount tokens, made with mode 0600 where it is absent."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise ValueError(f"{path} is not a signing key: {len(key)} bytes, {_KEY_BYTES} needed")
    return key


def _segment(value: Mapping[str, Any]) -> bytes:
    return _base64(msgspec.json.encode(value))


def _base64(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def _unbase64(value: bytes) -> bytes:
    return base64.urlsafe_b64decode(value + b"=" * (-len(value) % 4))
