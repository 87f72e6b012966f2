"""$KRUNTIME_OUTPUTS: the lines that a task or a Bash handler writes, parsed by the rules of A5. Pure."""

from __future__ import annotations

from runtimes.contract.limits import (
    OUTPUT_KEY_MAX_BYTES,
    OUTPUT_VALUE_MAX_BYTES,
    OUTPUTS_FILE_MAX_BYTES,
    OUTPUTS_MAX_BYTES,
    OUTPUTS_MAX_COUNT,
)


class OutputsInvalid(ValueError):
    """A rule is broken; the message names the line and the rule."""


def parse_outputs(data: bytes) -> dict[str, str]:
    """`KEY=VALUE` lines, and blocks `KEY<<WORD` … `WORD` whose value has no last newline; a later KEY wins.

    Empty lines are skipped. Raises OutputsInvalid.
    """
    if len(data) > OUTPUTS_FILE_MAX_BYTES:
        raise OutputsInvalid(f"the file has {len(data)} bytes; at most {OUTPUTS_FILE_MAX_BYTES} are read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OutputsInvalid(f"byte {error.start} is not UTF-8") from error
    outputs: dict[str, str] = {}
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        number = index + 1
        line = lines[index]
        index += 1
        if not line:
            continue
        equals, block = line.find("="), line.find("<<")
        if block != -1 and (equals == -1 or block < equals):
            key, word = line[:block], line[block + 2 :]
            try:
                end = lines.index(word, index) if word else -1
            except ValueError:
                end = -1
            if end == -1:
                raise OutputsInvalid(f"line {number}: the block of {key[:64]!r} has no end {word[:64]!r}")
            value = "\n".join(lines[index:end])
            index = end + 1
        elif equals != -1:
            key, value = line[:equals], line[equals + 1 :]
        else:
            raise OutputsInvalid(f"line {number} is neither KEY=VALUE nor KEY<<WORD: {line[:64]!r}")
        _check(number, key, value)
        outputs.pop(key, None)
        outputs[key] = value
    if len(outputs) > OUTPUTS_MAX_COUNT:
        raise OutputsInvalid(f"{len(outputs)} outputs; at most {OUTPUTS_MAX_COUNT} are kept")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in outputs.items())
    if size > OUTPUTS_MAX_BYTES:
        raise OutputsInvalid(f"{size} bytes of outputs; at most {OUTPUTS_MAX_BYTES} are kept")
    return outputs


def _check(number: int, key: str, value: str) -> None:
    if not key:
        raise OutputsInvalid(f"line {number}: the key is empty")
    if len(key.encode()) > OUTPUT_KEY_MAX_BYTES:
        raise OutputsInvalid(f"line {number}: a key has at most {OUTPUT_KEY_MAX_BYTES} bytes")
    if len(value.encode()) > OUTPUT_VALUE_MAX_BYTES:
        raise OutputsInvalid(f"line {number}: the value of {key[:64]!r} has more than {OUTPUT_VALUE_MAX_BYTES} bytes")
