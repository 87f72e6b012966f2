"""Tables and metadata alone: what `kubectl get` is answered."""

import datetime

import pytest

from controlplane.embedded.apiserver import columns, jsonpath
from controlplane.embedded.apiserver.tables import human_duration
from tests.apiserver.harness import CONFIG_MAPS, PODS, RUNS, TABLE, Api, config_map, pod, run

METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (135, "2m15s"),
        (599, "9m59s"),
        (601, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (9 * 86400, "9d"),
        (800 * 86400, "2y70d"),
    ],
)
def test_ages_read_as_kubectl_prints_them(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


async def test_a_table_of_runs_has_the_columns_of_the_crd(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    table = (await api.get(RUNS, accept=f"{TABLE},application/json")).ok()
    shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert shown == ["Name", "Phase", "Ready", "Reason", "Runtime", "Pod", "Attempt", "Age"]
    wide = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 1]
    assert wide == ["UID", "Pod UID", "URL"]
    row = table["rows"][0]
    assert row["cells"][:6] == ["a", "Pending", None, None, "python", None]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"
    assert table["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Object", "Run"), ("Metadata", "PartialObjectMetadata")]
)
async def test_a_table_carries_what_is_asked_for(api: Api, include: str, kind: str | None) -> None:
    (await api.post(RUNS, run("a"))).ok()
    row = (await api.get(f"{RUNS}/a?includeObject={include}", accept=TABLE)).ok()["rows"][0]
    assert (row["object"] or {}).get("kind") == kind
    (await api.get(f"{RUNS}?includeObject=Some", accept=TABLE)).refused(400)


async def test_a_client_without_a_known_form_is_refused(api: Api) -> None:
    (await api.get(RUNS, accept="application/vnd.kubernetes.protobuf")).refused(406, "NotAcceptable")
    (await api.get(RUNS, accept="application/json;as=Nothing;v=v1;g=meta.k8s.io")).refused(406)
    assert (await api.get(RUNS, accept=f"{TABLE.replace('v=v1', 'v=v9')},application/json")).ok()["kind"] == "RunList"
    assert (await api.get(RUNS, accept="*/*")).ok()["kind"] == "RunList"


async def test_metadata_alone_leaves_the_rest_out(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    listed = (await api.get(RUNS, accept=METADATA)).ok()
    assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert listed["items"][0].keys() == {"kind", "apiVersion", "metadata"}
    one = (await api.get(f"{RUNS}/a", accept=METADATA)).ok()
    assert one["kind"] == "PartialObjectMetadata"


async def test_every_kind_shows_a_table(api: Api) -> None:
    (await api.post(CONFIG_MAPS, config_map("c"))).ok()
    (await api.post(PODS, pod("p", nodeName="local"))).ok()
    resources = (await api.get("/api/v1")).ok()["resources"]
    for group in (await api.get("/apis")).ok()["groups"]:
        path = f"/apis/{group['preferredVersion']['groupVersion']}"
        resources += [{**each, "base": path} for each in (await api.get(path)).ok()["resources"]]
    for resource in resources:
        if "list" in resource["verbs"]:
            table = (await api.get(f"{resource.get('base', '/api/v1')}/{resource['name']}", accept=TABLE)).ok()
            widths = {len(row["cells"]) for row in table["rows"]}
            assert widths <= {len(table["columnDefinitions"])}, resource


NOW = datetime.datetime(2026, 1, 1, 0, 10, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Running"),
        ({"status": {"phase": "Pending"}}, "Pending"),
        (
            {"status": {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]}},
            "ErrImageNeverPull",
        ),
        ({"status": {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 3}}}]}}, "ExitCode:3"),
        ({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "Terminating"),
    ],
)
def test_a_pods_status_is_the_word_that_matters_most(changes: dict[str, object], word: str) -> None:
    item = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": True, "state": {"running": {}}}]},
        **changes,
    }
    assert columns.pod_status(item) == word


def test_sidecars_count_among_the_ready_containers() -> None:
    item = {
        "spec": {
            "containers": [{"name": "a"}],
            "initContainers": [{"name": "b", "restartPolicy": "Always"}, {"name": "c"}],
        },
        "status": {
            "containerStatuses": [{"name": "a", "ready": True}],
            "initContainerStatuses": [{"name": "b", "ready": True}],
        },
    }
    assert columns.pod_ready(item) == "2/2"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".metadata.name", "n"),
        ("{.metadata.name}", "n"),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        (".status.conditions[?(@.type=='Absent')].status", None),
        (".status.conditions[1].type", "Other"),
        (".status.conditions[-1].type", "Other"),
        (".status.conditions[*].type", "Ready"),
        (".metadata.annotations.example\\.com/key", "dotted"),
        (".metadata.annotations['example.com/key']", "dotted"),
        (".absent.below", None),
    ],
)
def test_json_paths_of_printer_columns(path: str, expected: object) -> None:
    item = {
        "metadata": {"name": "n", "annotations": {"example.com/key": "dotted"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]},
    }
    assert jsonpath.first(path, item) == expected


def test_a_json_path_outside_the_subset_is_an_error() -> None:
    with pytest.raises(ValueError, match="not understood"):
        jsonpath.compiled(".a[1:2]")
