"""PURE: durations, sizes and money, as people write them and as people read them."""

from __future__ import annotations

import re
from datetime import datetime

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = 'a duration such as "30m", "1h30m" or "45s" (a number alone has no unit)'


def parse_duration(text: str) -> float:
    """Seconds of "30m", "1h30m", "2d", "45s"; ValueError for anything else, `90` and `1:30` too."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text.strip()):
        raise ValueError(f"expected {DURATION}, got {text!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def show_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 30 min`, `2 d 3 h`: two units at most."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" if minutes >= 10 or not rest else f"{minutes} min {rest} s"
    if whole < 86400:
        hours, rest = divmod(whole, 3600)
        return f"{hours} h" if rest < 60 else f"{hours} h {rest // 60} min"
    days, rest = divmod(whole, 86400)
    return f"{days} d" if rest < 3600 else f"{days} d {rest // 3600} h"


def show_size(count: float) -> str:
    """Bytes in binary units: `812 B`, `4.7 KiB`, `44.9 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_time(moment: float, now: float) -> str:
    """A moment (seconds since 1970) in the user's zone: `14:05`, or `30 Nov 14:05` on another day."""
    then, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return then.strftime("%H:%M" if then.date() == today.date() else "%d %b %H:%M")
