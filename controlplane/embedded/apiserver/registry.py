"""Every resource that is served now: the built-in rows and those of the stored CRDs.

Lives here: the lookup. May not live here: where rows come from (`builtin.py`, `custom.py`). `server.py` and
`discovery.py` ask it.
"""

from collections.abc import Iterable, Sequence

from controlplane.embedded.apiserver.kinds import Resource


class Registry:
    """Resources by (group, version, plural). `generation` counts changes, for caches of what is derived from them."""

    def __init__(self, builtin: Iterable[Resource]) -> None:
        self._resources = {(r.group, r.version, r.plural): r for r in builtin}
        self._preferred: dict[tuple[str, str], Resource] = {}
        self.generation = 0
        self._index()

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._resources.get((group, version, plural))

    def stored_as(self, storage: str) -> Resource | None:
        """The resource of a storage name, for those who delete without a request."""
        group, _, plural = storage.rpartition("/")
        return self._preferred.get((group, plural))

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        group, _, version = api_version.rpartition("/")
        for resource in self._resources.values():
            if resource.kind == kind and resource.group == group and resource.version == version:
                return resource
        return None

    def all(self) -> Sequence[Resource]:
        return tuple(self._resources.values())

    def groups(self) -> dict[str, list[str]]:
        """Group names with their versions, the preferred one first; the core group is the empty name."""
        groups: dict[str, list[str]] = {}
        for group, version, _ in self._resources:
            versions = groups.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return groups

    def of_version(self, group: str, version: str) -> list[Resource]:
        return [r for (g, v, _), r in self._resources.items() if (g, v) == (group, version)]

    def serve(self, group: str, plural: str, resources: Sequence[Resource]) -> None:
        """Replace all versions of one resource; none takes it away."""
        kept = {key: r for key, r in self._resources.items() if (key[0], key[2]) != (group, plural)}
        kept |= {(r.group, r.version, r.plural): r for r in resources}
        self._resources = kept
        self._index()
        self.generation += 1

    def _index(self) -> None:
        self._preferred = {}
        for resource in self._resources.values():
            self._preferred.setdefault((resource.group, resource.plural), resource)
