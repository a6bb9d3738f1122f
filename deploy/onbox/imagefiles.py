"""PURE: the small files of a saved image, which tell an engine what its layers make up.

Known at both ends: on the laptop for `fab ship`, on a box for `fab ship --from BOX`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Mapping, Sequence

BLOBS = "blobs/sha256/"
CHUNK = 16 << 20  # bytes of a layer that are compressed, sent and kept as one
# Bytes per second of a line from which on deflating costs more time than it saves: one core
# deflates 70 MB/s (zlib's level 1, layers of our images, measured) to a third.
FAST_LINE = 40e6


def next_level(level: int, size: int, waited: float, sending: float) -> int:
    """zlib's level for what is deflated from now on: 1, or 0 where the line is faster than deflating.

    level    of a chunk that was sent just now
    size     its bytes as sent
    waited   s that the line had to wait until it was deflated
    sending  s that the line took it
    """
    if level:
        return 0 if waited > sending else level
    return 1 if size < FAST_LINE * sending else 0


def blob_path(digest: str) -> str:
    """Where a saved image has what is called "sha256:…"."""
    return BLOBS + digest.split(":")[1]


def manifest_file(tag: str, config: str, layers: Sequence[str]) -> bytes:
    """`manifest.json`, what `docker load` reads; layers that stay behind are named all the same.

    config, layers  digests as "sha256:…"
    """
    blobs = [blob_path(layer) for layer in layers]
    tags = [full_tag(tag)]
    return json.dumps([{"Config": blob_path(config), "RepoTags": tags, "Layers": blobs}]).encode()


def index_files(
    tag: str, config: str, config_size: int, layers: Sequence[str], sizes: Mapping[str, int]
) -> tuple[str, dict[str, bytes]]:
    """The same as an OCI image layout: (digest of its manifest, {file: content}).

    The containerd image store finds layers in it that it has already; in a `manifest.json` it wants
    them all. (OCI Image Format Specification 1.1: image-layout, manifest.)
    """
    kind = "application/vnd.oci.image."
    blobs = [
        {"mediaType": kind + "layer.v1.tar", "digest": each, "size": sizes[each]} for each in layers
    ]
    about = {
        "mediaType": kind + "config.v1+json",
        "digest": config,
        "size": config_size,
    }
    whole = {"schemaVersion": 2, "mediaType": kind + "manifest.v1+json"}
    manifest = json.dumps({**whole, "config": about, "layers": blobs}).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    name = full_tag(tag)
    entry = {
        "mediaType": kind + "manifest.v1+json",
        "digest": "sha256:" + digest,
        "size": len(manifest),
        "annotations": {
            "io.containerd.image.name": in_full(name),
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
        },
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    files = {
        blob_path("sha256:" + digest): manifest,
        "index.json": json.dumps(index).encode(),
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
    }
    return "sha256:" + digest, files


def full_tag(tag: str) -> str:
    """With `:latest` where no tag is named."""
    return tag if ":" in tag.rsplit("/", 1)[-1] else tag + ":latest"


def in_full(name: str) -> str:
    """As containerd writes it: `docker.io/library/x:1` of `x:1`, `docker.io/a/x:1` of `a/x:1`."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"
