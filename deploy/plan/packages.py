"""PURE: which packages give an engine with a Compose that is new enough, by distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEBIAN = ("docker.io", "docker-cli", "docker-compose", "docker-buildx")
UBUNTU = ("docker.io", "docker-compose-v2", "docker-buildx")
DOCKER_CE = ("docker-compose-plugin", "docker-buildx-plugin")  # beside Docker's own packages
KNOWN = {
    ("debian", "12"): DEBIAN,
    ("debian", "13"): DEBIAN,
    ("ubuntu", "22.04"): UBUNTU,
    ("ubuntu", "24.04"): UBUNTU,
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Source(NamedTuple):
    """Files to write under /etc/apt, and the release to install from; empty where none is needed."""

    files: tuple[tuple[str, str], ...] = ()
    release: str = ""


def can_install(system: str, version: str, uris: Sequence[str]) -> bool:
    """Whether we know the packages, and for Debian 12 a mirror that has the next release too."""
    return (system, version) in KNOWN and ((system, version) != ("debian", "12") or bool(uris))


def engine_packages(system: str, version: str, installed: Mapping[str, str]) -> tuple[str, ...]:
    """The packages to install; an engine from Docker's own source keeps to that source."""
    return DOCKER_CE if installed.get("docker-ce") else KNOWN[system, version]


def extra_source(system: str, version: str, uris: Sequence[str]) -> Source:
    """Debian 12's Compose is 1.29: the next release's packages need no newer libc than it has.

    The box's own mirror is used. The pin keeps everything else from that release away, and so does
    naming the release package by package: as the default release for the whole command it would
    upgrade libc and seven others on the way (measured).
    """
    if (system, version) != ("debian", "12"):
        return Source()
    source = (
        f"Types: deb\nURIs: {uris[0]}\nSuites: trixie\nComponents: main\nSigned-By: {KEYRING}\n"
    )
    pin = "Package: *\nPin: release n=trixie\nPin-Priority: 100\n"
    files = (
        ("/etc/apt/sources.list.d/gpubox-trixie.sources", source),
        ("/etc/apt/preferences.d/gpubox-trixie", pin),
    )
    return Source(files, "trixie")
