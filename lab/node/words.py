"""Texts of others in lines of ours."""

LIMIT = 300
ELLIPSIS = " ... "


def shortened(text: str, limit: int = LIMIT) -> str:
    """The text, without its middle where it has more than `limit` characters.

    An exception's message begins with what is wrong, and ends with the values it is wrong for.
    """
    if len(text) <= limit:
        return text
    kept = limit - len(ELLIPSIS)
    tail = kept // 3
    return f"{text[: kept - tail]}{ELLIPSIS}{text[-tail:]}"
