"""Verbs on resources: from a call to a reply.

Lives here: reading options, choosing the view, pages and continue tokens. May not live here: storage rules
(`objects.py`), HTTP (`server.py` sends the replies).
"""

import asyncio
import base64
import binascii
import datetime
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import (
    applying,
    errors,
    escalation,
    limits,
    patching,
    representation,
    selectors,
    watching,
)
from controlplane.embedded.apiserver.hub import Hub
from controlplane.embedded.apiserver.kinds import Object, Resource
from controlplane.embedded.apiserver.objects import DeleteOptions, Objects, Outcome, WriteOptions
from controlplane.embedded.apiserver.rbac import Authorizer
from controlplane.embedded.apiserver.records import Row
from controlplane.embedded.apiserver.representation import JSON
from controlplane.embedded.apiserver.requests import Call, decode_delete_options, delete_dry_run
from controlplane.embedded.apiserver.selectors import Selector
from controlplane.embedded.apiserver.store import Store
from controlplane.embedded.apiserver.tables import Presenter

_PROPAGATIONS: Final = frozenset({"", "Background", "Foreground", "Orphan"})


class Reply(msgspec.Struct, frozen=True):
    """A whole response, or a stream of chunks when `stream` is set."""

    body: bytes = b""
    code: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


class _Continue(msgspec.Struct, frozen=True, array_like=True):
    """What a continue token carries: the version of the list and the last place that was given."""

    revision: int
    namespace: str
    name: str
    whole: bool


class Endpoints:
    """The stored resources' verbs."""

    def __init__(
        self, store: Store, hub: Hub, objects: Objects, authorizer: Authorizer, now: Callable[[], datetime.datetime]
    ) -> None:
        self._store = store
        self._hub = hub
        self._objects = objects
        self._authorizer = authorizer
        self._now = now

    async def serve(self, resource: Resource, call: Call) -> Reply:
        """Answer one call on a resource or its status subresource. Raises ApiError."""
        target = call.target
        if target.subresource not in {"", "status" if resource.status else ""} or target.tail:
            raise errors.no_such_resource(f"{resource.plural} has no subresource {target.subresource!r}")
        if target.subresource and call.verb not in {"get", "update", "patch"}:
            raise errors.method_not_allowed(call.method)
        if not target.subresource and call.verb not in resource.verbs:
            raise errors.method_not_allowed(call.method)
        if resource.namespaced and not target.namespace and call.verb not in {"list", "watch"}:
            raise errors.method_not_allowed(call.method)
        match call.verb:
            case "get":
                return self._get(resource, call)
            case "list":
                return await self._list(resource, call)
            case "watch":
                return self._watch(resource, call)
            case "create":
                return self._create(resource, call)
            case "update":
                return self._update(resource, call)
            case "patch":
                return self._patch(resource, call)
            case "delete":
                return self._delete(resource, call)
            case _:
                return await self._delete_collection(resource, call)

    def _presenter(self, resource: Resource, call: Call) -> Presenter:
        view = representation.choose(call.headers.get("Accept", ""), call.query)
        return Presenter(resource, view, self._now)

    def _selector(self, resource: Resource, call: Call) -> Selector:
        fields = selectors.parse_fields(call.query.get("fieldSelector", ""), resource.readers)
        labels = selectors.parse_labels(call.query.get("labelSelector", ""))
        selector = Selector(labels, fields)
        if call.target.name:
            by_name = selectors.FieldRequirement(
                "metadata.name", True, call.target.name, resource.readers["metadata.name"]
            )
            selector = Selector(labels, (*fields, by_name))
        return selector

    def _scope(self, resource: Resource, call: Call) -> str | None:
        return (call.target.namespace or None) if resource.namespaced else None

    def _get(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        row = self._objects.get(resource, call.target.namespace, call.target.name)
        return Reply(presenter.one(row.value))

    async def _list(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        limit = call.number("limit", 0)
        rows, metadata = await self._select(resource, call, limit)
        return Reply(presenter.many([row.value for row in rows], metadata))

    async def _select(self, resource: Resource, call: Call, limit: int) -> tuple[list[Row], Object]:
        """Matching rows at one version, at most `limit` of them where it is not 0, and the list's metadata."""
        selector = self._selector(resource, call)
        revision, place = self._list_start(call)
        metadata: Object = {"resourceVersion": str(revision)}
        name = selector.only_name()
        if (name is not None and self._scope(resource, call) is not None) or (
            name is not None and not resource.namespaced
        ):
            row = self._store.get(self._objects.key(resource, call.target.namespace, name))
            fits = row is not None and selector.matches(msgspec.json.decode(row.value))
            return ([row] if row is not None and fits else []), metadata
        found: list[Row] = []
        while True:
            page = self._store.page_at(
                resource.stored_as,
                self._scope(resource, call),
                after=place,
                limit=limits.LIST_PAGE_ROWS if not limit else min(limit + 1, limits.LIST_PAGE_ROWS),
                revision=revision,
            )
            asked = limits.LIST_PAGE_ROWS if not limit else min(limit + 1, limits.LIST_PAGE_ROWS)
            for row in page:
                if not selector.everything and not selector.matches(msgspec.json.decode(row.value)):
                    continue
                if limit and len(found) == limit:
                    last = found[-1].key
                    metadata["continue"] = _token(_Continue(revision, last.namespace, last.name, selector.everything))
                    if selector.everything:
                        metadata["remainingItemCount"] = self._remaining(resource, call, place, found)
                    return found, metadata
                found.append(row)
            if len(page) < asked:
                return found, metadata
            place = (page[-1].key.namespace, page[-1].key.name)
            await asyncio.sleep(0)

    def _remaining(self, resource: Resource, call: Call, place: tuple[str, str], found: Sequence[Row]) -> int:
        last = (found[-1].key.namespace, found[-1].key.name)
        return self._store.count_after(resource.stored_as, self._scope(resource, call), last)

    def _list_start(self, call: Call) -> tuple[int, tuple[str, str]]:
        """The version that a list is read at and the place it starts behind."""
        version = call.query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise errors.bad_request(f'resourceVersion: Invalid value: "{version}": must be a number')
        token = call.query.get("continue", "")
        if token:
            if version not in {"", "0"}:
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            started = _from_token(token)
            if started.revision < self._store.compacted:
                raise errors.gone("The provided continue parameter is too old: list again without it")
            return started.revision, (started.namespace, started.name)
        asked = int(version or 0)
        if asked > self._store.revision:
            raise errors.future_version(asked, self._store.revision)
        if call.query.get("resourceVersionMatch") == "Exact" and asked:
            if asked < self._store.compacted:
                raise errors.gone(f"The resourceVersion for the provided list is too old: {asked}")
            return asked, ("", "")
        return self._store.revision, ("", "")

    def _watch(self, resource: Resource, call: Call) -> Reply:
        view = representation.choose(call.headers.get("Accept", ""), call.query)
        stream = watching.WatchStream(
            self._store,
            self._hub,
            resource,
            self._scope(resource, call),
            self._selector(resource, call),
            Presenter(resource, view, self._now),
            watching.parse_start(call),
            view,
        )
        return Reply(stream=stream.frames())

    def _create(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        item = representation.decode_body(call.body, call.headers.get("Content-Type", ""))
        outcome = self._objects.create(resource, call.target.namespace, item, self._write_options(resource, call))
        return self._reply(presenter, outcome, 201)

    def _update(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        target = call.target
        item = representation.decode_body(call.body, call.headers.get("Content-Type", ""))
        outcome = self._objects.replace(
            resource, target.namespace, target.name, item, self._write_options(resource, call), target.subresource
        )
        return self._reply(presenter, outcome, 200)

    def _patch(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        target = call.target
        media = patching.media_type(call.headers.get("Content-Type", ""), custom=resource.custom)
        options = self._write_options(resource, call)
        if call.query.get("force") and media != patching.APPLY_PATCH:
            cause = errors.Cause("FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force")
            raise errors.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        if media == patching.APPLY_PATCH:
            outcome = applying.apply(self._objects, resource, call, options, self._now())
            return self._reply(presenter, outcome, 201 if outcome.created else 200)
        mutate = patching.mutation(media, call.body)
        outcome = self._objects.change(resource, target.namespace, target.name, mutate, options, target.subresource)
        return self._reply(presenter, outcome, 200)

    def _delete(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        target = call.target
        outcome = self._objects.delete(resource, target.namespace, target.name, delete_options(call.body, call.query))
        if outcome.removed and resource.plural != "pods":
            return Reply(msgspec.json.encode(_deleted(resource, target.name, outcome.value)))
        return Reply(presenter.one(outcome.value))

    async def _delete_collection(self, resource: Resource, call: Call) -> Reply:
        presenter = self._presenter(resource, call)
        options = delete_options(call.body, call.query)
        rows, metadata = await self._select(resource, call, 0)
        for row in rows:
            if self._store.get(row.key) is not None:
                self._objects.delete(resource, row.key.namespace, row.key.name, options)
        return Reply(presenter.many([row.value for row in rows], metadata))

    def _write_options(self, resource: Resource, call: Call) -> WriteOptions:
        whole = call.verb in {"create", "update"} and call.validation != "Ignore"
        return WriteOptions(
            dry_run=call.dry_run,
            validation=call.validation,
            manager=call.manager,
            doubled=representation.duplicate_fields(call.body) if whole else (),
            guard=escalation.guard(self._authorizer, call.user, resource),
        )

    def _reply(self, presenter: Presenter, outcome: Outcome, code: int) -> Reply:
        if not outcome.warnings:
            return Reply(presenter.one(outcome.value), code)
        return Reply(presenter.one(outcome.value), code, headers={"Warning": warning_header(outcome.warnings)})


def warning_header(warnings: Sequence[str]) -> str:
    """RFC 7234 Warning values, as kubectl prints them."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for text in warnings)
    return ", ".join(f'299 - "{text}"' for text in quoted)


def delete_options(body: bytes, query: Mapping[str, str]) -> DeleteOptions:
    """Raises 400 for options that are none."""
    options = decode_delete_options(body, query)
    preconditions = options.get("preconditions") or {}
    propagation = options.get("propagationPolicy") or ""
    if propagation not in _PROPAGATIONS:
        supported = ("Foreground", "Background", "Orphan", "nil")
        raise errors.bad_option("DeleteOptions", "propagationPolicy", propagation, supported)
    if options.get("orphanDependents"):
        propagation = "Orphan"
    return DeleteOptions(
        grace_seconds=options.get("gracePeriodSeconds"),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=propagation,
        dry_run=delete_dry_run(options, query),
    )


def _deleted(resource: Resource, name: str, value: bytes) -> dict[str, Any]:
    details = {"name": name, "kind": resource.plural, "uid": msgspec.json.decode(value)["metadata"]["uid"]}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _token(place: _Continue) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _from_token(token: str) -> _Continue:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Continue)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise errors.bad_request("continue key is not valid") from error
