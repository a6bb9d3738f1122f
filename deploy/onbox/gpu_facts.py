"""NVIDIA cards: on the bus, to the driver, to nvidia-smi; absent is not the same as unknown."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from typing import Any

FIELDS = ("uuid", "name", "memory_mib", "driver")
QUERY = "uuid,name,memory.total,driver_version"
PATIENCE = 15.0  # seconds for nvidia-smi; it hangs when a card is gone


def gpus() -> dict[str, Any]:
    """`present`, `on_bus` (a count), `cards` (uuid, name, memory_mib, driver, capability), `why` none."""
    code, text = _smi("--query-gpu=" + QUERY)
    cards = [dict(zip(FIELDS, row)) for row in _rows(text, len(FIELDS))] if code == 0 else []
    # A query of its own: drivers before 510 refuse the whole of one that asks for it.
    capable, listed = _smi("--query-gpu=uuid,compute_cap")
    known = dict(_rows(listed, 2)) if capable == 0 else {}
    for card in cards:
        card["capability"] = known.get(card["uuid"], "")
    on_bus, loaded = len(nvidia_on_bus()), os.path.exists("/proc/driver/nvidia/version")
    present = bool(cards) or on_bus > 0 or loaded or os.path.exists("/dev/nvidiactl")
    return {
        "present": present,
        "on_bus": on_bus,
        "cards": cards,
        "why": "" if cards else _why_none(code, text, loaded),
    }


def nvidia_on_bus() -> list[str]:
    """PCI addresses of NVIDIA display controllers (class 0x03), whether or not a driver has them."""
    found = []
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        try:
            with open(folder + "/vendor") as vendor, open(folder + "/class") as kind:
                if vendor.read().strip() == "0x10de" and kind.read().startswith("0x03"):
                    found.append(os.path.basename(folder))
        except OSError:
            continue
    return sorted(found)


def _smi(question: str) -> tuple[int, str]:
    """nvidia-smi's exit code (-1: not there, -2: hangs) and what it prints."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return -1, ""
    try:
        done = subprocess.run(
            [program, question, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return -2, ""
    except OSError as no:
        return 126, str(no)
    return done.returncode, done.stdout.decode(errors="replace")


def _rows(text: str, count: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _why_none(code: int, text: str, loaded: bool) -> str:
    if code == -1:
        return "the driver is loaded, but there is no nvidia-smi" if loaded else "no nvidia-smi"
    if code == -2:
        return "nvidia-smi hangs"
    said = (text.strip().splitlines() or ["nothing"])[0][:120]
    return "nvidia-smi lists no card" if code == 0 else f"nvidia-smi says: {said}"
