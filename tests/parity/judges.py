"""Who judges a case: a compiled CRD, or an API server behind a URL. Both answer with a `Verdict`.

`test_corpus` asks the compiled CRDs, `test_embedded` an embedded API server, `real` a cluster named by a kubeconfig.
"""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import msgspec
import yaml

from controlplane.embedded.apiserver.schema import CompiledCRD, CompiledVersion
from tests.parity.cases import API_VERSION, Case, Object, at, merged

CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"
NAMESPACE: Final = "parity"
MERGE_PATCH: Final = "application/merge-patch+json"
_WARNING: Final = re.compile(r'299 - ("(?:[^"\\]|\\.)*")')


class Verdict(msgspec.Struct, frozen=True):
    """What came of a case: causes when its last request was refused, else warnings and the object as it reads."""

    causes: tuple[Object, ...] = ()
    warnings: tuple[str, ...] = ()
    item: Object = {}
    strict: str = ""


class Judge(Protocol):
    async def judge(self, case: Case) -> Verdict: ...


def mismatch(case: Case, verdict: Verdict) -> str:
    """Why a verdict is not what the case expects; empty when it is."""
    if case.refused is not None:
        for cause in verdict.causes:
            same = cause["field"] == case.refused.field and cause["reason"] == case.refused.reason
            if same and case.refused.message in cause["message"]:
                return ""
        return f"no cause {case.refused} among {_short(verdict.causes)}"
    if verdict.causes:
        return f"refused: {_short(verdict.causes)}"
    expected = tuple(f'unknown field "{path}"' for path in case.warned)
    if sorted(verdict.warnings) != sorted(expected):
        return f"warned {verdict.warnings}, not {expected}"
    if not all(text in verdict.strict for text in expected):
        return f"strict validation said {verdict.strict!r}"
    for path, value in case.reads.items():
        if at(verdict.item, path) != value:
            return f"{path} reads {at(verdict.item, path)!r}, not {value!r}"
    return ""


def _short(causes: tuple[Object, ...]) -> list[str]:
    return [f"{cause['field']} {cause['reason']}: {cause['message'][-160:]}" for cause in causes]


class CompiledJudge:
    """Judges in this process, by what the embedded API server compiles from `deploy/crds`."""

    def __init__(self) -> None:
        manifests = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
        self._versions: dict[str, CompiledVersion] = {
            crd["spec"]["names"]["plural"]: CompiledCRD.compile(crd).versions["v1alpha1"] for crd in manifests
        }

    async def judge(self, case: Case) -> Verdict:
        version = self._versions[case.plural]
        made = copy.deepcopy(case.manifest)
        made.pop("status", None)
        item, unknown = version.prune_and_default(made)
        warnings = tuple(f'unknown field "{path}"' for path in unknown)
        causes = version.validate(item)
        patch = case.spec_patch or case.status_patch
        if patch is not None:
            assert not causes, f"the object of the case {case.name!r} is refused: {causes}"
            before = copy.deepcopy(item)
            item, _ = version.prune_and_default(copy.deepcopy(merged(item, patch)))
            causes = version.validate(item, before)
        return Verdict(tuple(cause.as_object() for cause in causes), warnings, item, ", ".join(warnings))


class HttpJudge:
    """Judges by an API server that serves the CRDs. Objects are made in one namespace and deleted again."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._base = f"{server}/apis/{API_VERSION}/namespaces/{NAMESPACE}"

    async def judge(self, case: Case) -> Verdict:
        url = f"{self._base}/{case.plural}"
        body = json.dumps(case.manifest)
        name = case.manifest["metadata"]["name"]
        strict = ""
        if case.warned:
            code, answer, _ = await self._ask("POST", f"{url}?fieldValidation=Strict&dryRun=All", body)
            strict = answer["message"] if code == 400 else f"{code} {answer}"
        code, answer, warnings = await self._ask("POST", url, body)
        if code != 201:
            return _refusal(code, answer)
        try:
            place = f"{url}/{name}"
            if case.spec_patch is not None:
                code, answer, _ = await self._ask("PATCH", place, json.dumps(case.spec_patch), MERGE_PATCH)
            elif case.status_patch is not None:
                code, answer, _ = await self._ask(
                    "PATCH", f"{place}/status", json.dumps(case.status_patch), MERGE_PATCH
                )
            if code not in (200, 201):
                return _refusal(code, answer)
            # Read in the answer, not by a GET: where a control plane runs, it writes the status next.
            return Verdict((), warnings, answer, strict)
        finally:
            await self._ask("DELETE", f"{url}/{name}")

    async def _ask(
        self, method: str, url: str, body: str | None = None, media_type: str = "application/json"
    ) -> tuple[int, Object, tuple[str, ...]]:
        headers = {"Content-Type": media_type} if body is not None else {}
        async with self._session.request(method, url, data=body, headers=headers) as response:
            warnings = tuple(text for value in response.headers.getall("Warning", ()) for text in _warnings(value))
            return response.status, await response.json(), warnings


def _refusal(code: int, answer: Mapping[str, Any]) -> Verdict:
    causes = (answer.get("details") or {}).get("causes")
    unnamed = {"field": "", "reason": str(code), "message": str(answer.get("message"))}
    return Verdict(tuple(causes or [unnamed]))


def _warnings(value: str) -> list[str]:
    """The texts of one header: `299 - "unknown field \\"spec.x\\""`, or several of these with commas between them."""
    return [str(json.loads(text)) for text in _WARNING.findall(value)]
