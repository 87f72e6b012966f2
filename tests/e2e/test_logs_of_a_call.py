"""`krt logs NAME --invocation ID` on the real system: each line of a call whole and in order, and what was cut."""

import textwrap

from runtimes.contract.limits import LOG_LINE_MAX_BYTES
from tests.e2e.stack import Stack, function, names, until
from tests.e2e.test_seed_cases import make

NAME = names()
LINES = 2000
PRINTS = textwrap.dedent("""
    import sys
    def invoke(request):
        for number in range(request["lines"]):
            print(f"{request['word']} out {number} ü")
            print(f"{request['word']} err {number}", file=sys.stderr)
        print("x" * request.get("long", 0))
        sys.stdout.write("no newline at its end")
        return {"outputs": {}}
""")


def test_the_lines_of_one_call_come_back_whole_and_in_order(stack: Stack) -> None:
    name = next(NAME)
    make(stack, function(name, PRINTS))
    for call in ("one", "two"):
        body = f'{{"lines": {LINES}, "word": "{call}"}}'
        assert stack.krt("invoke", name, "--invocation-id", call, "-d", body).code == 0
    for call in ("one", "two"):

        def lines(call: str = call) -> list[str]:
            return stack.krt("logs", name, "--invocation", call).out.splitlines()  # type: ignore[no-any-return]

        found = until(
            "its last line is there", lambda call=call: (got := lines(call)) and len(got) >= 2 * LINES and got
        )
        assert [line for line in found if " out " in line] == [f"{call} out {n} ü" for n in range(LINES)]
        assert [line for line in found if " err " in line] == [f"{call} err {n}" for n in range(LINES)]
        assert "no newline at its end" in found
    assert stack.krt("logs", name, "--invocation", "three").out == ""
    long = f'{{"lines": 0, "word": "", "long": {LOG_LINE_MAX_BYTES + 1}}}'
    assert stack.krt("invoke", name, "--invocation-id", "long", "-d", long).code == 0
    found = until("the cut is said", lambda: (got := stack.krt("logs", name, "--invocation", "long").out) and got)
    assert f"[cut: a line of more than {LOG_LINE_MAX_BYTES} bytes on stdout]" in found
    assert stack.krt("delete", name).code == 0
