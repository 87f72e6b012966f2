"""Runs as the control plane keeps them: without source, environment and annotations, which decide nothing here.

A Run may carry 128 KiB of source, and kubectl's copy of it in an annotation; a control plane holds every Run of the
cluster. The fields are skipped while decoding, by looking for them under names that no object has.
"""

from typing import Final

import msgspec

from controlplane.kube.resources import RUNS, Kind
from controlplane.kube.types import ObjectMeta, RunEnvVar, RunObject, RunSpecObject, SourceObject


class LeanMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata without annotations."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="-annotations")


class LeanSpec(RunSpecObject, frozen=True, kw_only=True):
    """A spec without what is run."""

    source: SourceObject | None = msgspec.field(default=None, name="-source")
    env: tuple[RunEnvVar, ...] = msgspec.field(default=(), name="-env")


class LeanRun(RunObject, frozen=True, kw_only=True):
    """A Run that decides as the whole one does."""

    metadata: LeanMeta = LeanMeta()
    spec: LeanSpec


LEAN_RUNS: Final[Kind[RunObject]] = Kind(RUNS.group, RUNS.version, RUNS.plural, RUNS.kind, LeanRun)
