"""Puts an image of this machine's engine into a box's engine by hard links: no byte is copied.

`docker save | docker load` of our images takes half a minute to three on two cores, most of it
for checksums of what is known. Both engines keep a layer as a folder of overlay2 on one disk, and
no engine ever writes into a layer; so the box's gets the folders under other names.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

STORE = Path("image", "overlay2")


def may_plant(here: Path, there: Path) -> bool:
    """Whether both folders are data roots of engines with overlay2, ours, and on one file system."""
    roots = (here, there)
    ours = os.geteuid() == 0 and all((root / STORE / "layerdb/sha256").is_dir() for root in roots)
    return ours and here.stat().st_dev == there.stat().st_dev


def plant(image: str, tag: str, here: Path, there: Path) -> None:
    """Image `sha256:…` of the engine at `here` becomes `tag` of the one at `there`, which is stopped."""
    digest = image.partition(":")[2]
    config = STORE / "imagedb/content/sha256" / digest
    layers = json.loads((here / config).read_text())["rootfs"]["diff_ids"]
    for chain in chain_ids(layers):
        layer = STORE / "layerdb/sha256" / chain
        if not (there / layer).exists():
            folder = Path("overlay2", (here / layer / "cache-id").read_text())
            link = Path("overlay2/l", (here / folder / "link").read_text())
            _link([folder, link, layer], here, there)
    _link([config], here, there)
    _name(tag, image, there / STORE / "repositories.json")


def chain_ids(layers: list[str]) -> list[str]:
    """The names of layers in the store, the lowest first: each by itself and all that is below it
    (github.com/opencontainers/image-spec, config.md, "Layer ChainID")."""
    chains = layers[:1]
    for layer in layers[1:]:
        chains.append("sha256:" + hashlib.sha256(f"{chains[-1]} {layer}".encode()).hexdigest())
    return [chain.partition(":")[2] for chain in chains]


def _link(names: list[Path], here: Path, there: Path) -> None:
    for name in names:
        (there / name.parent).mkdir(parents=True, exist_ok=True)
        # cp keeps what overlayfs notes in attributes and devices (removed files, replaced folders)
        command = ["cp", "--archive", "--link", str(here / name), str(there / name)]
        subprocess.run(command, check=True, capture_output=True)


def _name(tag: str, image: str, file: Path) -> None:
    known = json.loads(file.read_text()) if file.exists() else {"Repositories": {}}
    known["Repositories"].setdefault(tag.rpartition(":")[0], {})[tag] = image
    new = file.with_suffix(".new")
    new.write_text(json.dumps(known))
    new.chmod(0o600)
    new.rename(file)
