"""Text within a bound of bytes, for messages that the API limits. Pure; knows nothing of Runs."""

_ELLIPSIS = "…"


def cut_bytes(text: str, limit: int) -> str:
    """`text`, cut at a character so that its UTF-8 is at most `limit` bytes; a cut ends in an ellipsis (3 bytes)."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - len(_ELLIPSIS.encode())].decode("utf-8", "ignore") + _ELLIPSIS
