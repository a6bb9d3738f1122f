"""What both kinds of archives come down to: members, one after another."""

from __future__ import annotations

from typing import IO, Callable, NamedTuple

HARD_LINK, OTHER = "hard", "other"  # beside the types of a manifest


class Member(NamedTuple):
    """One member of an archive: a path as its maker meant it, and how to get its bytes."""

    path: str
    type: str  # as in a manifest; "other" for a device and the like; "hard" for a hard link
    mode: int
    mtime: int  # s
    target: str
    open: Callable[[], IO[bytes]]
    size: int  # bytes, as the archive says; of a zip it may be a lie
