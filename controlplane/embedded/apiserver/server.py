"""The HTTPS front: one handler for every request, from its head to a reply or a stream.

Lives here: authentication, authorisation, dispatch, errors as Status, the request log. May not live here: what a verb
does. `main.py` starts it.
"""

import contextlib
import datetime
import logging
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from controlplane.embedded.apiserver import errors, limits, requests
from controlplane.embedded.apiserver.discovery import VERSION, Discovery
from controlplane.embedded.apiserver.endpoints import Endpoints, Reply
from controlplane.embedded.apiserver.identity import ANONYMOUS, Authenticator, User
from controlplane.embedded.apiserver.impersonation import impersonated
from controlplane.embedded.apiserver.openapi import Document, OpenAPI
from controlplane.embedded.apiserver.rbac import Attributes, Authorizer
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.requestlog import RequestLog
from controlplane.embedded.apiserver.requests import Call, Target
from controlplane.embedded.apiserver.reviews import Reviews
from controlplane.embedded.apiserver.runlogs import RunLogs
from controlplane.embedded.apiserver.subresources import Subresources
from controlplane.runlogs import api as runlogs

_log = logging.getLogger(__name__)
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})


class Front:
    """Answers requests. Everything it needs is given to the constructor."""

    def __init__(
        self,
        *,
        registry: Registry,
        discovery: Discovery,
        openapi: OpenAPI,
        endpoints: Endpoints,
        reviews: Reviews,
        subresources: Subresources,
        run_logs: RunLogs,
        authenticator: Authenticator,
        authorizer: Authorizer,
        request_log: RequestLog,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._registry = registry
        self._discovery = discovery
        self._openapi = openapi
        self._endpoints = endpoints
        self._reviews = reviews
        self._subresources = subresources
        self._run_logs = run_logs
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._request_log = request_log
        self._now = now

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """One request. Never raises but for the client's going away."""
        started = time.perf_counter()
        path, _, query_text = http.raw_path.partition("?")
        call = Call(http.method, path, {}, http.headers, b"", ANONYMOUS, "", Target())
        try:
            query = dict(urllib.parse.parse_qsl(query_text, keep_blank_values=True)) if query_text else {}
            call = msgspec.structs.replace(call, query=query)
            call = await self._admit(http, call)
            reply = await self._serve(call)
        except errors.ApiError as error:
            reply = _refusal(error)
        except RecursionError:
            reply = _refusal(errors.bad_request("the body nests too deep"))
        except Exception as error:
            _log.exception("request failed", extra={"path": path})
            reply = _refusal(errors.internal(f"{type(error).__name__}: {error}"))
        self._request_log.write(call, code=reply.code, seconds=time.perf_counter() - started, at=self._now())
        return await _send(http, reply)

    async def _admit(self, http: web.BaseRequest, call: Call) -> Call:
        """Who asks for what, and whether they may. The body is read only then."""
        target = requests.parse_path(call.path)
        verb = requests.verb_of(call.method, target, call.query) if target.resource else ""
        call = msgspec.structs.replace(call, target=target, verb=verb)
        user = impersonated(self._authorizer, self._authenticate(http.headers), http.headers)
        call = msgspec.structs.replace(call, user=user)
        attributes = call.attributes
        if not self._authorizer.allows(user, attributes):
            raise _denied(user, attributes)
        if not http.can_read_body:
            return call
        length = http.content_length
        if length is not None and length > limits.REQUEST_BODY_MAX_BYTES:
            raise errors.too_large(limits.REQUEST_BODY_MAX_BYTES)
        try:
            if http.headers.get("Expect", "").lower() == "100-continue":
                await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                http.writer.output_size = 0
            body = await http.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise errors.too_large(limits.REQUEST_BODY_MAX_BYTES) from error
        return msgspec.structs.replace(call, body=body)

    def _authenticate(self, headers: Mapping[str, str]) -> User:
        header = headers.get("Authorization", "")
        if not header:
            return ANONYMOUS
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise errors.unauthorized()
        found = self._authenticator.by_token(token.strip())
        if found is None:
            raise errors.unauthorized()
        return found.user

    async def _serve(self, call: Call) -> Reply:
        target = call.target
        if not target.resource:
            return self._plain(call)
        if (target.group, target.version) == (runlogs.GROUP, runlogs.VERSION):
            return await self._run_logs.serve(call)
        resource = self._registry.find(target.group, target.version, target.resource)
        if resource is None:
            raise errors.no_such_resource()
        if resource.review:
            if call.verb != "create" or target.name:
                raise errors.method_not_allowed(call.method, "POST")
            return Reply(self._reviews.answer(resource, call), 201)
        if target.subresource and target.name and not target.tail:
            reply = self._subresources.serve(resource, call)
            if reply is not None:
                return reply
        return await self._endpoints.serve(resource, call)

    def _plain(self, call: Call) -> Reply:
        if call.method not in {"GET", "HEAD"}:
            raise errors.method_not_allowed(call.method, "GET")
        path = call.path.rstrip("/") or "/"
        if path in _HEALTH or path.rpartition("/")[0] in _HEALTH:
            return Reply(b"ok", content_type="text/plain; charset=utf-8")
        if path == "/version":
            return Reply(msgspec.json.encode(VERSION))
        if path.startswith("/openapi/"):
            return self._openapi_document(call, path.removeprefix("/openapi/"))
        found = self._discovery.document(path, call.headers.get("Accept", ""))
        if found is None:
            raise errors.no_such_resource()
        return Reply(found[0], content_type=found[1])

    def _openapi_document(self, call: Call, path: str) -> Reply:
        version, _, group = path.partition("/")
        found: Document | None = None
        if version == "v3":
            found = self._openapi.group(group) if group else self._openapi.index()
        elif path == "v2":
            found = self._openapi.version_2(protobuf="protobuf" in call.headers.get("Accept", ""))
        if found is None:
            raise errors.no_such_resource()
        etag = f'"{found.etag}"'
        if etag in call.headers.get("If-None-Match", ""):
            return Reply(code=304, headers={"ETag": etag})
        return Reply(found.body, content_type=found.media_type, headers={"ETag": etag})


def _denied(user: User, asked: Attributes) -> errors.ApiError:
    """403 in Kubernetes' words."""
    if not asked.resource:
        why = f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
        return errors.forbidden("", "", "", why)
    scope = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {asked.verb} resource "{asked.target}" in API group "{asked.group}" {scope}'
    return errors.forbidden(asked.resource, asked.group, asked.name, why)


def _refusal(error: errors.ApiError) -> Reply:
    return Reply(msgspec.json.encode(error.status()), error.code, headers=error.headers)


async def _send(http: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    headers = {"Content-Type": reply.content_type, "Cache-Control": "no-cache, private", **reply.headers}
    if reply.stream is None:
        return web.Response(body=reply.body, status=reply.code, headers=headers)
    response = web.StreamResponse(status=reply.code, headers=headers)
    async with contextlib.aclosing(reply.stream) as chunks:  # type: ignore[type-var]
        try:
            await response.prepare(http)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except (TimeoutError, ConnectionError):
            pass
    return response


def error_page(code: int, message: str) -> tuple[bytes, Mapping[str, Any]]:
    """A Status for requests that never reach the handler."""
    error = errors.of_code(code, message)
    return msgspec.json.encode(error.status()), {"Content-Type": "application/json"}
