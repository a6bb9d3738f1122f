#!/usr/bin/env python3
"""Builds an image with the settings of whoever builds: `images/build.py cpu|gpu|notebook`.

Standard library only, Python 3.8+, so that it runs on a laptop, in CI and on a box alike. The
user's package index, mirror, proxy and certificate authority reach the build as secrets and
predefined arguments: none of them becomes part of an image or of its history.
"""

from __future__ import annotations

import argparse
import configparser
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {
    "cpu": ("Dockerfile.cpu", "train"),
    "gpu": ("Dockerfile.gpu", "train"),
    "notebook": ("Dockerfile.cpu", "notebook"),
}
LOCAL_BASE = "gpubox/base:latest"
REGISTRY_BASE = "python:3.12-slim"
PULL_PATIENCE = 60.0  # s for a registry to begin to answer; a blocked one hangs

# What pip reads, from the variable PIP_NAME or a config file, and what of it holds in a container
# (a folder of the machine does not).
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SYSTEM_CA = "/etc/ssl/certs/ca-certificates.crt"


def pip_files(environ: dict[str, str]) -> list[Path]:
    """pip's config files, the weakest first (pip's documentation, "Configuration files")."""
    home = Path(environ.get("HOME", "/"))
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    files.append(home / "Library/Application Support/pip/pip.conf")
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    return files


def pip_settings(environ: dict[str, str], files: Iterable[Path]) -> dict[str, str]:
    """The user's settings for pip that also hold inside a container; uv's index serves as well."""
    found: dict[str, str] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        parser.read(path, encoding="utf-8")
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update(parser.items(section))
    for name, variable in (("index-url", "UV_DEFAULT_INDEX"), ("extra-index-url", "UV_INDEX")):
        if environ.get(variable):
            found[name] = environ[variable]
    for name in PIP_SETTINGS:
        value = environ.get("PIP_" + name.upper().replace("-", "_"))
        if value:
            found[name] = value
    return {name: _remote(found[name]) for name in PIP_SETTINGS if _remote(found.get(name, ""))}


def _remote(value: str) -> str:
    """A setting's words without folders of this machine."""
    words = [w for w in value.split() if not w.startswith(("file:", "/", "./", "~"))]
    return " ".join(words)


def authority(environ: dict[str, str]) -> str | None:
    """The file of certificate authorities that this machine's programs use."""
    named = [environ.get(name, "") for name in CA_VARIABLES]
    return next((path for path in [*named, SYSTEM_CA] if path and Path(path).is_file()), None)


def build_command(
    device: str, tag: str, base: str, secrets: dict[str, str], more: list[str]
) -> list[str]:
    """The argument list of `docker build`; values of secrets and proxies are not in it."""
    dockerfile, target = TARGETS[device]
    command = ["docker", "build", "--file", str(ROOT / dockerfile), "--target", target]
    command += ["--tag", tag, "--build-arg", f"BASE={base}"]
    for name in PROXIES:
        command += ["--build-arg", name]  # its value comes from the environment
    for name, path in sorted(secrets.items()):
        command += ["--secret", f"id={name},src={path}"]
    return [*command, *more, str(ROOT)]


def own_packages(requirements: str, folder: str) -> str:
    """A folder with nothing but that file, so that no other change makes the layer anew."""
    project = Path(folder) / "project"
    project.mkdir()
    try:
        (project / "requirements.txt").write_bytes(Path(requirements).read_bytes())
    except OSError as no:
        raise SystemExit(f"images/build.py: {requirements}: {no.strerror}") from None
    return str(project)


def engine_has(image: str) -> bool:
    """Whether the engine holds the image already."""
    return _quiet(["docker", "image", "inspect", image]) == 0


def find_base(wanted: str) -> str:
    """The base image: the one that was asked for, ours, a registry's, or made by the recipe."""
    if wanted:
        return wanted
    if engine_has(LOCAL_BASE):
        return LOCAL_BASE
    if engine_has(REGISTRY_BASE) or _quiet(["docker", "pull", "--quiet", REGISTRY_BASE]) == 0:
        return REGISTRY_BASE
    print("no registry answers: making the base of Debian packages", file=sys.stderr)
    if subprocess.call([str(ROOT / "images/base"), LOCAL_BASE], stdout=sys.stderr) != 0:
        raise SystemExit(
            "images/build.py: no base image: on a Debian or Ubuntu machine run "
            "`sudo images/base`, or name one that you have with --base"
        )
    return LOCAL_BASE


def _quiet(command: list[str]) -> int:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PULL_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return 124
    except OSError:
        raise SystemExit(
            "images/build.py: no docker command here: install the engine first"
        ) from None
    return done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Find the base, write the settings into files of our own, build, remove the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=sorted(TARGETS))
    parser.add_argument("--tag", help="default gpubox/DEVICE:latest")
    parser.add_argument("--base", default="", help="base image with Python 3.10 to 3.13")
    parser.add_argument("--requirements", help="a file of packages of your own, on top of ours")
    parser.add_argument("--target", default="", help="env: all but the kit's own programs")
    parser.add_argument("--env", default="", help="an image of that target, to build upon")
    known, more = parser.parse_known_args(arguments)
    environ = dict(os.environ, DOCKER_BUILDKIT="1")
    base = known.env or find_base(known.base)
    with tempfile.TemporaryDirectory(prefix="gpubox-build-") as folder:
        pip = Path(folder) / "pip.conf"
        lines = [
            f"{name} = {value}\n"
            for name, value in pip_settings(environ, pip_files(environ)).items()
        ]
        pip.write_text("[global]\n" + "".join(lines), encoding="utf-8")
        secrets = {"pip": str(pip), "ca": authority(environ) or os.devnull}
        tag = known.tag or f"gpubox/{known.device}:latest"
        more += ["--target", known.target] if known.target else []
        more += ["--build-context", f"env=docker-image://{known.env}"] if known.env else []
        if known.requirements:
            more += ["--build-context", f"project={own_packages(known.requirements, folder)}"]
        command = build_command(known.device, tag, base, secrets, more)
        return subprocess.call(command, env=environ)


if __name__ == "__main__":
    sys.exit(main())
