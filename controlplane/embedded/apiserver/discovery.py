"""What is served, in Kubernetes' three forms: legacy lists, aggregated discovery, /version.

Lives here: the documents, made from the registry and kept until it changes. May not live here: OpenAPI (`openapi.py`).
`server.py` answers with them.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.registry import Registry
from controlplane.runlogs import api as runlogs

Object = dict[str, Any]

KUBERNETES_MINOR: Final = 33
"""The Kubernetes whose API this server speaks."""

VERSION: Final[Mapping[str, str]] = {
    "major": "1",
    "minor": str(KUBERNETES_MINOR),
    "gitVersion": f"v1.{KUBERNETES_MINOR}.0+kruntimes",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}

_EXTRA_SUBRESOURCES: Final[Mapping[str, tuple[tuple[str, str, str, str, tuple[str, ...]], ...]]] = {
    "/pods": (
        ("log", "", "", "Pod", ("get",)),
        ("eviction", "policy", "v1", "Eviction", ("create",)),
    ),
    "/serviceaccounts": (("token", "authentication.k8s.io", "v1", "TokenRequest", ("create",)),),
    "/namespaces": (("finalize", "", "", "Namespace", ("update",)),),
}
_SUBRESOURCE_VERBS: Final = ("get", "patch", "update")


class Discovery:
    """Documents by path; each is encoded once for a state of the registry."""

    def __init__(self, registry: Registry, address: str) -> None:
        self._registry = registry
        self._address = address
        self._documents: dict[str, bytes] = {}
        self._generation = -1

    def document(self, path: str, accept: str) -> tuple[bytes, str] | None:
        """Body and content type of `/api`, `/apis`, a group or a group version; None for another path."""
        if self._generation != self._registry.generation:
            self._documents.clear()
            self._generation = self._registry.generation
        aggregated = _aggregated_version(accept) if path in {"/api", "/apis"} else ""
        key = f"{aggregated}{path}"
        body = self._documents.get(key)
        if body is None:
            made = self._make(path, aggregated)
            if made is None:
                return None
            body = self._documents[key] = msgspec.json.encode(made)
        if aggregated:
            return body, f"application/json;g=apidiscovery.k8s.io;v={aggregated};as=APIGroupDiscoveryList"
        return body, "application/json"

    def _groups(self) -> dict[str, list[str]]:
        groups = {group: versions for group, versions in self._registry.groups().items() if group}
        groups[runlogs.GROUP] = [runlogs.VERSION]
        return groups

    def _make(self, path: str, aggregated: str) -> Object | None:
        parts = path.strip("/").split("/")
        match parts:
            case ["api"] if aggregated:
                return self._aggregate({"": ["v1"]}, aggregated)
            case ["apis"] if aggregated:
                return self._aggregate(self._groups(), aggregated)
            case ["api"]:
                return self._core_versions()
            case ["api", "v1"]:
                return self._resource_list("", "v1")
            case ["apis"]:
                groups = [self._group(group, versions) for group, versions in self._groups().items()]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group] if group in self._groups():
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group, self._groups()[group])}
            case ["apis", group, version] if version in self._groups().get(group, ()):
                return self._resource_list(group, version)
            case _:
                return None

    def _core_versions(self) -> Object:
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}

    def _group(self, group: str, versions: list[str]) -> Object:
        entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
        return {"name": group, "versions": entries, "preferredVersion": entries[0]}

    def _resource_list(self, group: str, version: str) -> Object:
        resources: list[Object] = []
        for resource in self._registry.of_version(group, version):
            resources.append(_resource_entry(resource))
            for name, sub_group, sub_version, kind, verbs in _subresources(resource):
                entry: Object = {
                    "name": f"{resource.plural}/{name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": kind,
                    "verbs": list(verbs),
                }
                if sub_version:
                    entry |= {"group": sub_group, "version": sub_version}
                resources.append(entry)
        if (group, version) == (runlogs.GROUP, runlogs.VERSION):
            resources += [dict(entry) for entry in runlogs.RESOURCES]
        group_version = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}

    def _aggregate(self, groups: Mapping[str, list[str]], version: str) -> Object:
        items: list[Object] = []
        for group, versions in groups.items():
            entries = [
                {"version": each, "resources": self._aggregated_resources(group, each), "freshness": "Current"}
                for each in versions
            ]
            metadata: Object = {"name": group} if group else {}
            metadata["creationTimestamp"] = None
            items.append({"metadata": metadata, "versions": entries})
        api_version = f"apidiscovery.k8s.io/{version}"
        return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}

    def _aggregated_resources(self, group: str, version: str) -> list[Object]:
        entries: list[Object] = []
        for resource in self._registry.of_version(group, version):
            entry: Object = {
                "resource": resource.plural,
                "responseKind": {"group": group, "version": version, "kind": resource.kind},
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "singularResource": resource.singular or resource.kind.lower(),
                "verbs": list(resource.verbs),
            }
            if resource.short_names:
                entry["shortNames"] = list(resource.short_names)
            if resource.categories:
                entry["categories"] = list(resource.categories)
            subresources = [
                {
                    "subresource": name,
                    "responseKind": {
                        "group": sub_group if sub_version else group,
                        "version": sub_version or version,
                        "kind": kind,
                    },
                    "verbs": list(verbs),
                }
                for name, sub_group, sub_version, kind, verbs in _subresources(resource)
            ]
            if subresources:
                entry["subresources"] = subresources
            entries.append(entry)
        return entries


def _resource_entry(resource: Resource) -> Object:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _subresources(resource: Resource) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    found: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    if resource.status:
        found.append(("status", "", "", resource.kind, _SUBRESOURCE_VERBS))
    if resource.scale:
        found.append(("scale", "autoscaling", "v1", "Scale", _SUBRESOURCE_VERBS))
    return [*found, *_EXTRA_SUBRESOURCES.get(resource.stored_as, ())]


def _aggregated_version(accept: str) -> str:
    """`v2` or `v2beta1` where the client asks for aggregated discovery, else empty: kubectl 1.27 does not know v2."""
    for offer in accept.split(","):
        parts = {part.strip() for part in offer.split(";")}
        if {"g=apidiscovery.k8s.io", "as=APIGroupDiscoveryList"} <= parts:
            for version in ("v2", "v2beta1"):
                if f"v={version}" in parts:
                    return version
        if "application/json" in parts and len(parts) == 1:
            return ""
    return ""


def unknown_path(path: str) -> errors.ApiError:
    return errors.no_such_resource() if path.startswith(("/api", "/apis")) else errors.no_such_resource(path)
