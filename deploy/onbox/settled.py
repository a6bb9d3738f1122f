"""Tells a staged folder that can be believed from one that a power cut may have emptied.

Waiting for the disk would cost as much as the staging itself, and what is staged can be staged
again. So a whole and verified folder is renamed into place at once, a child process syncs it
meanwhile, and it is believed while the box has not booted since, or once it is synced. After
a boot that came in between, it is read and verified again before anybody gets it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from .locks import boot_id
from .publish import sync_folder
from .staged import Staged

SYNC = '{ sync -f "$1" 2>/dev/null || sync; } && : >"$2"'


def publish(staged: Staged) -> None:
    """Rename the finished part into place, and have it synced meanwhile."""
    forget(staged)
    os.rename(staged.part, staged.path)
    note_boot(staged)


def note_boot(staged: Staged) -> None:
    """Whole as of this boot; a child of our own, which nobody waits for, notes when it is synced."""
    with open(staged.path + ".boot", "w") as file:
        file.write(boot_id())
    synced = staged.path + ".synced"
    with contextlib.suppress(OSError):
        subprocess.Popen(
            ["sh", "-c", SYNC, "gpubox-sync", os.path.dirname(staged.path), synced],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def is_settled(staged: Staged) -> bool:
    """True where the folder is what it was when it was verified."""
    if os.path.exists(staged.path + ".synced"):
        return True
    with contextlib.suppress(OSError), open(staged.path + ".boot") as file:
        return bool(boot_id()) and file.read() == boot_id()
    return False


def forget(staged: Staged) -> None:
    """On the disk as well; no sync where nothing stood, as that would wait for all that was written."""
    marks = [staged.path + end for end in (".synced", ".boot")]
    there = [each for each in marks if os.path.exists(each)]
    for each in there:
        os.unlink(each)
    if there:
        sync_folder(os.path.dirname(staged.path))


def set_aside(staged: Staged) -> None:
    """Out of the way, so that it is staged anew; it leaves when room is needed."""
    forget(staged)
    os.rename(staged.path, f"{staged.path}.damaged-{os.getpid()}")
