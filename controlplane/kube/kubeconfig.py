"""Where the Kubernetes API is and how to be known there: kubeconfig files and a Pod's own ServiceAccount.

Reads files only, and needs no more than the standard library and a YAML parser, so that a command that makes one call
may use it without the rest. What needs a plugin (exec, auth-provider) is carried along for `transport.py`.
"""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SERVICE_ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
KUBECONFIG_MAX_BYTES: Final = 4 * 1024 * 1024  # thousands of clusters; more is no kubeconfig


class ConfigError(Exception):
    """The configuration cannot be used; the message says which file and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One way into one API server, as read: files may have changed since. Secrets stay out of its repr."""

    server: str
    namespace: str
    context: str = ""
    ca_file: str | None = None
    ca_pem: bytes | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    token: str | None = None
    token_file: str | None = None
    basic: tuple[str, str] | None = None
    cert_file: str | None = None
    cert_pem: bytes | None = None
    key_file: str | None = None
    key_pem: bytes | None = None
    plugin: Mapping[str, Any] | None = None
    sources: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Access(server={self.server!r}, context={self.context!r}, namespace={self.namespace!r})"

    def bearer(self) -> str | None:
        """The bearer token at this moment, from its file if it has one; None if another sort of credential is used."""
        if self.token_file is not None:
            return read_text(self.token_file).strip()
        return self.token


def kubeconfig_paths(explicit: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The files that count, first wins: the explicit one, else those of KUBECONFIG, else `~/.kube/config`."""
    if explicit:
        return (explicit,)
    named = tuple(part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part)
    return named or (str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config"),)


def load_access(
    kubeconfig: str | None,
    *,
    context: str | None = None,
    service_account_dir: str | None = None,
    environ: Mapping[str, str],
) -> Access:
    """As kubectl decides: a kubeconfig where one is named or found, else the Pod's ServiceAccount."""
    paths = kubeconfig_paths(kubeconfig, environ)
    named = bool(kubeconfig or environ.get("KUBECONFIG"))
    if not named and environ.get("KUBERNETES_SERVICE_HOST") and not Path(paths[0]).is_file():
        return in_cluster(service_account_dir or SERVICE_ACCOUNT_DIR, environ)
    return from_kubeconfig(paths, context)


def in_cluster(service_account_dir: str, environ: Mapping[str, str]) -> Access:
    """The API of the cluster that this Pod runs in, as its ServiceAccount."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    folder = Path(service_account_dir)
    token_file, ca_file = str(folder / "token"), str(folder / "ca.crt")
    for needed in (token_file, ca_file):
        if not read_text(needed).strip():
            raise ConfigError(f"{needed} is empty")
    namespace_file = folder / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=read_text(str(namespace_file)).strip() if namespace_file.is_file() else "default",
        ca_file=ca_file,
        token_file=token_file,
    )


def from_kubeconfig(paths: tuple[str, ...], context: str | None = None) -> Access:
    """The context named, or the current one, of these files merged as kubectl merges them (the first value wins)."""
    documents = [(path, read_kubeconfig(path)) for path in paths if len(paths) == 1 or Path(path).is_file()]
    if not documents:
        raise ConfigError(f"no kubeconfig: none of {', '.join(paths)} exists")
    where = documents[0][0]
    name = context or next((d["current-context"] for _, d in documents if d.get("current-context")), None)
    if not name:
        raise ConfigError(f"{where} has no current-context, and none was named")
    _, chosen = _named(documents, "contexts", "context", name)
    cluster_path, cluster = _named(documents, "clusters", "cluster", str(chosen.get("cluster", "")))
    user_path: str = where
    user: dict[str, Any] = {}
    if chosen.get("user"):
        user_path, user = _named(documents, "users", "user", str(chosen["user"]))
    server = str(cluster.get("server") or "")
    if not server.startswith(("http://", "https://")):
        raise ConfigError(f"{cluster_path}: cluster {chosen.get('cluster')!r} has no http(s) server")
    password = user.get("username") and user.get("password")
    return Access(
        server=server.rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
        context=name,
        ca_file=_file(cluster, "certificate-authority", cluster_path),
        ca_pem=_data(cluster, "certificate-authority-data", cluster_path),
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        tls_server_name=cluster.get("tls-server-name") or None,
        proxy=cluster.get("proxy-url") or None,
        token=user.get("token") or None,
        token_file=None if user.get("token") else _file(user, "tokenFile", user_path),
        basic=(str(user["username"]), str(user["password"])) if password else None,
        cert_file=_file(user, "client-certificate", user_path),
        cert_pem=_data(user, "client-certificate-data", user_path),
        key_file=_file(user, "client-key", user_path),
        key_pem=_data(user, "client-key-data", user_path),
        plugin=_plugin(chosen, cluster, user, user_path) if "exec" in user or "auth-provider" in user else None,
        sources=tuple(path for path, _ in documents),
    )


def read_kubeconfig(path: str) -> dict[str, Any]:
    """One kubeconfig file as it stands."""
    text = read_text(path)
    document = _json(text) if text.startswith("{") else None
    if document is None:
        import yaml  # 12 ms: our own kubeconfigs are JSON, which is YAML too

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            document = yaml.load(text, Loader=loader)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no kubeconfig")
    return document


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_text(path: str) -> str:
    """A bounded UTF-8 file."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(KUBECONFIG_MAX_BYTES + 1)
        if len(raw) > KUBECONFIG_MAX_BYTES:
            raise ConfigError(f"{path} is larger than {KUBECONFIG_MAX_BYTES} bytes")
        return raw.decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8") from error


def _named(
    documents: list[tuple[str, dict[str, Any]]], section: str, key: str, name: str
) -> tuple[str, dict[str, Any]]:
    for path, document in documents:
        for entry in document.get(section) or ():
            if isinstance(entry, dict) and entry.get("name") == name:
                value = entry.get(key) or {}
                if not isinstance(value, dict):
                    raise ConfigError(f"{path}: {key} {name!r} is no mapping")
                return path, value
    raise ConfigError(f"{documents[0][0]} has no {key} named {name!r}")


def _file(section: Mapping[str, Any], key: str, config_path: str) -> str | None:
    """A path in a kubeconfig is relative to that file; the `-data` form, where there, wins."""
    if not section.get(key) or section.get(f"{key}-data"):
        return None
    return str(Path(config_path).resolve().parent / str(section[key]))


def _data(section: Mapping[str, Any], key: str, config_path: str) -> bytes | None:
    if not section.get(key):
        return None
    try:
        return base64.b64decode(str(section[key]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{config_path}: {key} is not base64") from error


def _plugin(
    context: Mapping[str, Any], cluster: Mapping[str, Any], user: Mapping[str, Any], user_path: str
) -> dict[str, Any]:
    """A kubeconfig of this one context, for the credential plugins of the Kubernetes client library.

    A relative command with a slash is relative to the file, as kubectl has it.
    """
    user = dict(user)
    if isinstance(user.get("exec"), dict):
        command = str(user["exec"].get("command", ""))
        if "/" in command:
            command = str(Path(user_path).resolve().parent / command)
        user["exec"] = {**user["exec"], "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {**context, "cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": cluster.get("server")}}],
        "users": [{"name": "it", "user": user}],
    }
