"""Numbers, intervals, names and lists as short texts."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.evaluation.statistics.averages import Interval


def short_number(value: float | None) -> str:
    """Return `value` in six characters or fewer (eight at the ends of what a float can hold), "-" for None."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 99_999.5 or 0 < size < 0.0005:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


def score_text(value: float | None) -> str:
    """Return a normalized score, "-" for None; what lies beyond three decimals of such a scale is noise."""
    return "-" if value is None else f"{value:z.3f}"


def score_interval_text(interval: Interval | None) -> str:
    """Return both ends of an interval of scores, "-" for None."""
    return "-" if interval is None else f"[{score_text(interval[0])}, {score_text(interval[1])}]"


def rating_text(rating: float | None, interval: Interval | None) -> str:
    """Return a rating with its interval, in whole points; nothing where there is none."""
    return "" if rating is None or interval is None else f"{rating:.0f} [{interval[0]:.0f}, {interval[1]:.0f}]"


def interval_text(interval: Interval | None) -> str:
    """Return both ends of an interval as short numbers, "-" for None."""
    return "-" if interval is None else f"[{short_number(interval[0])}, {short_number(interval[1])}]"


def shorten(name: str, most: int) -> str:
    """Return `name` in `most` characters or fewer: without its middle if it is longer, as both ends tell names apart."""
    if len(name) <= most:
        return name
    end = max(0, most - 1) // 2
    return name[: max(0, most - 1 - end)] + "…" + name[len(name) - end :]


def counted(count: int, noun: str) -> str:
    """Return a number with what it counts: "1 episode", "1,200 episodes"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as a list in a sentence; beyond `most`, how many more there are."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(", ".join(names).rsplit(", ", 1))


def numbers_text(numbers: Sequence[int], most: int = 12) -> str:
    """Return whole numbers in order, neighbours as a range: "0-3, 7"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    texts = ["-".join(map(str, ends)) for ends in ranges]
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and more"
