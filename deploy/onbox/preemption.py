"""Notices of AWS and Google that a spot machine is about to be taken back."""

from __future__ import annotations

import os
import time
from typing import Callable

POLL = 5.0  # seconds; AWS gives two minutes, Google thirty seconds
AWS = "http://169.254.169.254"
GCP = "http://169.254.169.254"


def provider_here(named: str) -> str:
    """ "aws", "gcp" or "": as the user says, else as the machine's firmware says."""
    if named in ("aws", "gcp"):
        return named
    if named != "auto":
        return ""
    try:
        with open("/sys/class/dmi/id/sys_vendor") as file:
            vendor = file.read().strip()
    except OSError:
        return ""
    return {"Amazon EC2": "aws", "Google": "gcp"}.get(vendor, "")


def wait_for_notice(provider: str, noticed: Callable[[str], None]) -> None:
    """Ask every POLL seconds, and call `noticed(words)` once; returns at once elsewhere."""
    kind = provider_here(provider)
    if not kind:
        return
    ask = aws_notice if kind == "aws" else gcp_notice
    base = os.environ.get("GPUBOX_METADATA") or (AWS if kind == "aws" else GCP)
    while True:
        words = ask(base)
        if words:
            noticed(words)
            return
        time.sleep(POLL)


def aws_notice(base: str) -> str:
    """Spot interruption of EC2 (IMDSv2): an answer other than 404 is the notice."""
    token = _get(base + "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    header = {"X-aws-ec2-metadata-token": token} if token else {}
    text = _get(base + "/latest/meta-data/spot/instance-action", header)
    return "AWS spot" if "action" in text else ""


def gcp_notice(base: str) -> str:
    """Pre-emption of Compute Engine: the value turns to TRUE."""
    path = "/computeMetadata/v1/instance/preempted"
    text = _get(base + path, {"Metadata-Flavor": "Google"})
    return "Google spot" if text.strip() == "TRUE" else ""


def _get(url: str, headers: dict[str, str], method: str = "GET") -> str:
    """The body, or "" where there is none; no proxy, for the address is the machine's own."""
    import urllib.request  # late: it doubles the start of a supervisor, and most boxes never ask

    request = urllib.request.Request(url, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=3) as answer:
            return str(answer.read(4096).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""
