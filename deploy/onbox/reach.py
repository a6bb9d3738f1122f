"""Whether this box reaches the package sources that it is itself set up for."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .facts import output

SECONDS = 5
DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


def sources() -> dict[str, list[str]]:
    """The box's own settings: `apt` sites and `pip` indexes; empty where there is no such program.

    Without the user and password that an address may hold: these go to screens and logs.
    """
    pip = [sys.executable, "-m", "pip"]
    index = output(*pip, "config", "get", "global.index-url") or output(
        sys.executable, "-c", DEFAULT_INDEX
    )
    return {
        "apt": sorted({without_login(uri) for uri, _ in apt_suites() if uri.startswith("http")}),
        "pip": [without_login(index.strip())] if index else [],
    }


def apt_suites() -> list[tuple[str, str]]:
    """(URI, suite) of each apt source: what an update would ask for first, lists or none."""
    printed = output("apt-get", "update", "--print-uris") or ""
    return re.findall(r"^'([^']+?)/(?:dists/)?([^/']+)/InRelease'", printed, re.MULTILINE)


def without_login(text: str) -> str:
    """`https://user:password@host/` as `https://host/`, wherever in a text it stands."""
    return re.sub(r"(\w://)[^/@\s]+@", r"\1", text)


def reachable() -> dict[str, Any]:
    """For each kind of source, {url: "" if it answers, else why not}."""
    found = sources()
    urls = [url for group in found.values() for url in group]
    with ThreadPoolExecutor(8) as pool:
        why = dict(zip(urls, pool.map(why_not, urls)))
    return {kind: {url: why[url] for url in group} for kind, group in found.items()}


def why_not(url: str) -> str:
    """ "" where a server answers, whatever it answers; else the reason (through the box's own proxy)."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as no:
        return str(getattr(no, "reason", no))
    return ""
