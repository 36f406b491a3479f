"""Plain text for people: numbers with their units, the same everywhere. Text of strangers cannot move the cursor."""

from __future__ import annotations

from math import log


def printable(text: object) -> str:
    """The text on one line; control characters, which a stranger may have put there, are shown as escapes."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)


def shortened(text: str, width: int) -> str:
    """At most `width` characters, the last one an ellipsis where something was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def examples(*lines: str) -> str:
    """The end of a command's --help: example command lines, each on a line of its own."""
    return "\n\n".join(("Examples" if len(lines) > 1 else "Example", *lines))


def number(value: object) -> float | None:
    """The value when it can be shown as a number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def duration(value: object) -> str:
    """As "12 s", "3 min", "2.5 h" or "3.1 days"; "unknown" for anything that is no number."""
    seconds = number(value)
    if seconds is None:
        return "unknown"
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def least_duration(value: object) -> str:
    """As `duration`, and "less than 1 s" for what rounds to nothing."""
    seconds = number(value)
    return duration(value) if seconds is None or not 0 <= seconds < 1 else "less than 1 s"


def in_bytes(count: object) -> str:
    """As "12 B" or "3.4 MB", in decimal units; "-" for anything that is no number."""
    size = number(count)
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def whole(value: object) -> str:
    """A number without decimals, thousands apart; "-" for anything that is no number."""
    found = number(value)
    return "-" if found is None else f"{found:,.0f}"


def done_percent(done: float, of: float) -> str:
    """The share that is done, as "less than 0.1%", "0.4%" or "43%". Rounded down: a run is complete with its last token."""
    percent = min(100.0, 100 * done / of) if of else 0.0
    if 0 < percent < 0.1:
        return "less than 0.1%"
    return f"{int(10 * percent) / 10:.1f}%" if 0 < percent < 10 else f"{int(percent)}%"


def several(count: float, thing: str) -> str:
    """As "1 round", "3 rounds" or "1,234.5 minutes"; for words that take an s."""
    return f"{count:,.10g} {thing}" if count == 1 else f"{count:,.10g} {thing}s"


def short_count(value: object) -> str:
    """A count as "950", "12.3k", "14.7M" or "2.1B"; "-" for anything that is no number."""
    found = number(value)
    if found is None:
        return "-"
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if found >= size:
            return f"{found / size:.1f}{unit}"
    return f"{found:.0f}"


def bits(nats: object) -> str:
    """A loss in nats as bits, three decimals; "-" for anything that is no number."""
    found = number(nats)
    return "-" if found is None else f"{found / log(2):.3f}"
