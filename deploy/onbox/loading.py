"""Gives an image's layers to the engine of this box while they still arrive, each checked by its digest."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zlib
from typing import Any, Iterator

from .docker_runner import last_line
from .refusal import Refusal


def chunk_path(folder: str, layer: str, number: int) -> str:
    return os.path.join(folder, layer.split(":")[1], f"{number:08d}")


class Arriving:
    """What of an image has arrived: told by the thread that receives, awaited by the one that loads."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}  # of layers, in their order
        self.files: dict[str, bytes] = {}
        self._chunks: dict[str, int] = {}  # that are here of a layer that is not whole yet
        self._whole: set[str] = set()
        self._ended = self._broken = False
        self._news = threading.Condition()

    def chunk(self, layer: str, number: int, size: int | None) -> None:
        with self._news:
            self._chunks[layer] = number + 1
            if size is not None:
                self.sizes[layer] = size
            self._news.notify_all()

    def whole(self, layer: str, size: int) -> None:
        with self._news:
            self.sizes[layer] = size
            self._whole.add(layer)
            self._news.notify_all()

    def end(self, broken: bool = False) -> None:
        with self._news:
            self._ended, self._broken = True, broken
            self._news.notify_all()

    def layers(self) -> Iterator[tuple[str, int]]:
        """Each layer and its size, as soon as that is known."""
        number = 0
        while self._known(number):
            yield list(self.sizes.items())[number]
            number += 1

    def _known(self, number: int) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or len(self.sizes) > number)
            self._refuse_broken()
            return len(self.sizes) > number

    def has(self, layer: str, number: int) -> bool:
        """Whether the layer has that chunk; waits until it is known."""
        with self._news:
            self._news.wait_for(
                lambda: self._ended or layer in self._whole or number < self._chunks.get(layer, 0)
            )
            self._refuse_broken()
        return os.path.exists(chunk_path(self.folder, layer, number))

    def _refuse_broken(self) -> None:
        if self._broken:
            raise Refusal("TransferError", "the image broke off", "the same command goes on")


class Damaged(Refusal):
    """A layer that is not what its name says."""

    def __init__(self, layer: str) -> None:
        super().__init__(
            "VerifyError",
            f"layer {layer[:19]} arrived damaged and was removed",
            "the same command sends it again",
        )
        self.layer = layer


class LayerReader:
    """A layer out of its chunks, as they arrive; Damaged at the end unless it is that of its name."""

    def __init__(self, arriving: Arriving, layer: str) -> None:
        self._arriving, self._layer = arriving, layer
        self._next, self._block = 0, io.BytesIO()
        self._digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """`count` bytes, fewer only at the layer's end."""
        data = self._block.read(count)
        while len(data) < count and self._open_next():
            data += self._block.read(count - len(data))
        return data

    def _open_next(self) -> bool:
        if not self._arriving.has(self._layer, self._next):
            self.check()
            return False
        try:
            with open(chunk_path(self._arriving.folder, self._layer, self._next), "rb") as file:
                block = zlib.decompress(file.read())
        except (OSError, zlib.error):
            raise Damaged(self._layer) from None
        self._next += 1
        self._digest.update(block)
        self._block = io.BytesIO(block)
        return True

    def check(self) -> None:
        if "sha256:" + self._digest.hexdigest() != self._layer:
            raise Damaged(self._layer)


@contextlib.contextmanager
def loading(arriving: Arriving) -> Iterator[list[str]]:
    """`docker load` of what arrives meanwhile, without the layers that are here; ends with it.

    Afterwards the list holds the engine's words where it refused.
    """
    refused: list[str] = []
    faults: list[BaseException] = []
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=said, stderr=said
        )

        def write() -> None:
            assert child.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError), child.stdin:
                    _write_tar(child.stdin, arriving)
            except BaseException as no:
                faults.append(no)
                child.kill()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield refused
        except BaseException:
            arriving.end(broken=True)
            raise
        finally:
            writer.join()
            code = child.wait()
        for fault in faults:
            if isinstance(fault, Damaged):
                shutil.rmtree(os.path.dirname(chunk_path(arriving.folder, fault.layer, 0)))
            raise fault
        said.seek(0)
        words = said.read().decode(errors="replace")
    if code:
        refused.append(last_line(words) or f"docker load ended with {code}")


def _write_tar(target: Any, arriving: Arriving) -> None:
    with tarfile.open(fileobj=target, mode="w|", bufsize=1 << 20) as archive:
        for layer, size in arriving.layers():
            member = tarfile.TarInfo("blobs/sha256/" + layer.split(":")[1])
            member.size = size
            reader = LayerReader(arriving, layer)
            archive.addfile(member, reader)  # type: ignore[arg-type]
            reader.check()
        for name, content in arriving.files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
