"""What is particular to Bash: how a file is sourced, how a handler runs, and where its answer comes from."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.conformance.kit import Bench, failing


async def load(bench: Bench, source: str, **more: Any) -> str:
    return (await bench.register("", files={"main.sh": source}, **more))[1]


async def outputs(bench: Bench, source: str, request: Any = None) -> Any:
    return (await bench.invoke(await load(bench, source), request))["outputs"]


async def test_the_file_is_sourced_once_and_each_call_has_a_fresh_subshell(bash: Bench) -> None:
    source = """
        loads=$((${loads:-0} + 1))
        declare -A table=([k]=v)
        count=0
        invoke() {
            count=$((count + 1))
            echo "{\\"outputs\\": {\\"loads\\": $loads, \\"count\\": $count, \\"k\\": \\"${table[k]}\\"}}"
        }
    """
    registration = await load(bash, source)
    for _ in range(2):
        assert await bash.invoke(registration) == {"outputs": {"loads": 1, "count": 1, "k": "v"}}


async def test_set_e_holds_in_the_handler_and_spares_the_worker(bash: Bench) -> None:
    source = "set -euo pipefail\nok() { echo '{\"outputs\": {}}'; }\n"
    source += 'invoke() { false; echo \'{"outputs": {"reached": 1}}\'; }\n'
    registration = await load(bash, source)
    for _ in range(2):
        async with failing("HandlerFailed") as caught:
            await bash.invoke(registration)
        assert "status 1" in caught[0].message
    ok = await load(bash, source, handler="main.ok")
    assert await bash.invoke(ok) == {"outputs": {}}


async def test_an_unset_variable_fails_the_call_and_says_which(bash: Bench) -> None:
    registration = await load(bash, 'set -u\ninvoke() { echo "$no_such_variable"; }\n')
    async with failing("HandlerFailed") as caught:
        await bash.invoke(registration)
    assert "no_such_variable" in caught[0].message and "unbound" in caught[0].details["stderr"]


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('echo "a=1" >>"$KRUNTIME_OUTPUTS"; echo "only a log line"', {"a": "1"}),
        ('printf "a<<E\\nx\\ny\\nE\\n" >>"$KRUNTIME_OUTPUTS"', {"a": "x\ny"}),
        ('echo "{\\"outputs\\": {\\"id\\": \\"$KRUNTIME_INVOCATION_ID\\"}}"', {"id": "i-1"}),
        ('r=$(wc -c <"$KRUNTIME_REQUEST_FILE"); echo "{\\"outputs\\": {\\"n\\": $r}}"', {"n": 2}),
        ('printf "\\n\\n  {\\"outputs\\": {}}  \\n"', {}),
        ("echo '{}'", {}),
        ('exec 3>&1; echo \'{"outputs": {"x": 1}}\' >&3', {"x": 1}),
        ("IFS=x; printf() { :; }; read() { :; }; echo '{\"outputs\": {}}'", {}),
        ("trap 'echo >&2 leaving' EXIT; echo '{\"outputs\": {}}'; exit 0", {}),
        ("cd /; echo '{\"outputs\": {}}'", {}),
        ("trap 'echo \"}\"' EXIT; echo '{\"outputs\": {}'", {}),
        ("trap \"echo '}'\" EXIT; echo '{\"outputs\": {}'", {}),
        ("trap 'echo never' EXIT; trap - EXIT; echo '{\"outputs\": {}}'", {}),
        ("echo '{\"outputs\": {}}'; exec >kept; echo text", {}),
        ("echo '{\"outputs\": {}}'; exec >&-", {}),
        ("echo '{\"outputs\": {}}'; set -x", {}),
        ("echo '{\"outputs\": {}}'; exec true", {}),
    ],
)
async def test_where_the_answer_comes_from(bash: Bench, body: str, answer: Any) -> None:
    assert await outputs(bash, f"invoke() {{ {body}; }}\n") == answer


@pytest.mark.parametrize(
    ("body", "reason", "says"),
    [
        ("exit 7", "HandlerFailed", "status 7"),
        ("echo why >&2; false", "HandlerFailed", "why"),
        ("kill -9 $BASHPID", "HandlerFailed", "status 137"),
        ("kill -TERM $BASHPID", "HandlerFailed", "status 143"),
        ("trap 'exit 9' EXIT; true", "HandlerFailed", "status 9"),
        ("no_such_command", "HandlerFailed", "not found"),
        (":", "HandlerResultInvalid", "got nothing"),
        ("echo text", "HandlerResultInvalid", "'text'"),
        ('echo \'{"outputs": {}} {"outputs": {}}\'', "HandlerResultInvalid", "expected"),
        ('echo \'{"outputs": {"x": NaN}}\'', "HandlerResultInvalid", "expected"),
        ('printf \'{"outputs": {"x": "\\xff"}}\'', "HandlerResultInvalid", "expected"),
        ("echo '{\"outputs\": []}'", "HandlerResultInvalid", "expected"),
        ("echo '{\"artifactRefs\": [{}]}'", "HandlerResultInvalid", "expected"),
        ('echo broken >>"$KRUNTIME_OUTPUTS"', "HandlerResultInvalid", "line 1"),
        ("exit 0; echo >&60 forged", "HandlerResultInvalid", "got nothing"),
        ("kill -9 $$; sleep 60", "WorkerCrashed", "signal 9"),
    ],
)
async def test_a_bad_call_has_its_own_answer_and_the_next_is_served(
    bash: Bench, body: str, reason: str, says: str
) -> None:
    source = f'invoke() {{ if [ "$(cat)" = 0 ]; then echo \'{{"outputs": {{}}}}\'; else {body}; fi; }}\n'
    registration = await load(bash, source)
    async with failing(reason) as caught:
        await bash.invoke(registration, 1)
    assert says in caught[0].message, caught[0]
    assert await bash.invoke(registration, 0) == {"outputs": {}}


@pytest.mark.parametrize(
    ("source", "reason", "says"),
    [
        ("invoke() { :; }\nif then\n", "ImportFailed", "syntax error"),
        ("if true; then\ninvoke() { :; }\n", "ImportFailed", "syntax error"),
        ("exit 0\n", "ImportFailed", "status 0"),
        ("echo why >&2\nexit 3\n", "ImportFailed", "status 3: why"),
        ("set -e\nfalse\ninvoke() { :; }\n", "ImportFailed", "status 1"),
        ("set -u\necho $nope\ninvoke() { :; }\n", "ImportFailed", "nope"),
        ("kill -9 $$\n", "ImportFailed", "137"),
        ("invoke=5\n", "HandlerNotFound", "invoke"),
        ("alias invoke=true\n", "HandlerNotFound", "invoke"),
        ("", "HandlerNotFound", "invoke"),
    ],
)
async def test_a_file_that_does_not_load_says_why(bash: Bench, source: str, reason: str, says: str) -> None:
    async with failing(reason) as caught:
        await load(bash, source)
    assert says in caught[0].message, caught[0]


async def test_a_file_whose_last_command_fails_still_loads(bash: Bench) -> None:
    assert await outputs(bash, 'invoke() { echo \'{"outputs": {}}\'; }\n[ -n "" ] && echo never\n') == {}


async def test_a_request_of_140_kb_does_not_break_external_commands(bash: Bench) -> None:
    source = 'invoke() { n=$(wc -c); /bin/echo "{\\"outputs\\": {\\"n\\": $n}}"; }\n'
    assert await outputs(bash, source, "x" * 140_000) == {"n": 140_002}


async def test_a_process_left_over_cannot_write_into_a_later_answer(bash: Bench) -> None:
    source = 'invoke() { ( while sleep 0.01; do echo forged; done ) & echo "{\\"outputs\\": {\\"true\\": 1}}"; }\n'
    registration = await load(bash, source)
    for _ in range(5):
        assert (await bash.invoke(registration))["outputs"] == {"true": 1}
        await asyncio.sleep(0.015)


async def test_a_handler_that_prints_far_too_much_is_answered_in_time(bash: Bench) -> None:
    registration = await load(bash, "invoke() { head -c 20000000 /dev/zero; }\n")
    began = time.monotonic()
    async with failing("ResponseTooLarge") as caught:
        await bash.invoke(registration)
    assert "20000000" in caught[0].message and time.monotonic() - began < 5


async def test_a_trace_goes_to_the_log_and_shows_the_handler_only(bash: Bench) -> None:
    epoch, registration = await bash.register("", files={"main.sh": "set -x\ninvoke() { echo '{\"outputs\": {}}'; }\n"})
    await bash.invoke(registration)
    traced = [entry["line"] for entry in bash.log(epoch.run_uid) if entry["invocation"] == "i-1"]
    assert any("invoke" in line for line in traced)
    assert not any("printf" in line or "read -r" in line for line in traced)


async def test_a_status_that_is_said_early_shows_in_no_file_and_no_log(bash: Bench) -> None:
    source = 'invoke() { echo "{\\"outputs\\": {\\"kept\\": \\"$(tr -d "\\0" <kept)\\"}}"; exec >kept; set -x; }\n'
    epoch, registration = await bash.register("", files={"main.sh": source, "kept": ""})
    assert [(await bash.invoke(registration))["outputs"] for _ in range(2)] == [{"kept": ""}] * 2
    assert not [
        entry for entry in bash.log(epoch.run_uid) if "kruntime" in entry["line"] and "say" not in entry["line"]
    ]


async def test_concurrency_is_a_pool_of_shells(bash: Bench) -> None:
    registration = await load(bash, 'invoke() { sleep 0.2; echo "{\\"outputs\\": {\\"pid\\": $$}}"; }\n', concurrency=3)
    answers = await asyncio.gather(*(bash.invoke(registration) for _ in range(3)))
    assert len({answer["outputs"]["pid"] for answer in answers}) == 3


async def test_the_files_of_a_call_are_gone_after_it(bash: Bench) -> None:
    source = 'invoke() { echo "{\\"outputs\\": {\\"f\\": \\"$KRUNTIME_REQUEST_FILE\\"}}"; }\n'
    epoch, registration = await bash.register("", files={"main.sh": source})
    await bash.invoke(registration)
    calls = bash.server.folder / "runs" / epoch.run_uid / "1" / "calls"
    await bash.invoke(registration)  # What comes after the answer has been done.
    assert list(calls.glob("*/*.1")) == []
    assert {path.name for path in calls.glob("*/outputs.*")} == set()


async def test_a_task_gets_its_arguments_as_they_are(bash: Bench) -> None:
    head = bash.task("", "a b", "", "-x", "$HOME", "*", files={"main.sh": 'printf "<%s>" "$0" "$@"\n'})
    await bash.client.execute_task(head)
    assert (await bash.result(head.epoch)).exit_code == 0
    assert [entry["line"] for entry in bash.log(head.epoch.run_uid)] == ["<main.sh><a b><><-x><$HOME><*>"]


async def test_a_task_in_a_folder_runs_in_the_root(bash: Bench) -> None:
    head = bash.task("", files={"tools/t.sh": 'echo "$0 ${PWD##*/}"\n'}, entrypoint="tools/t.sh")
    await bash.client.execute_task(head)
    await bash.result(head.epoch)
    assert [entry["line"] for entry in bash.log(head.epoch.run_uid)] == ["tools/t.sh src"]
