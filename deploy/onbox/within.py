"""Changes files below one folder and never outside it: every part of a path is opened without links."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Any

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
TEMPORARY = ".gpubox.tmp"


class Tree:
    """A folder by its descriptor; paths are relative, with "/" between their parts."""

    def __init__(self, root: str, folder_mode: int = 0o700, gid: int = -1) -> None:
        self._root = os.open(root, FOLDER)
        self._mode, self._gid = folder_mode, gid
        self._last: tuple[str, int] = ("", self._root)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._forget()
        os.close(self._root)

    def size(self, path: str) -> int | None:
        """Of a plain file; None where there is none."""
        with contextlib.suppress(OSError):
            fd, name = self._at(path)
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        return None

    def rename_out(self, path: str, target: str) -> None:
        fd, name = self._at(path)
        os.rename(name, target, src_dir_fd=fd)

    def unlink(self, path: str) -> None:
        fd, name = self._at(path)
        os.unlink(name, dir_fd=fd)

    def link_in(self, source: str, path: str) -> None:
        """A hard link at `path`, in place of what is there."""
        fd, name = self._at(path, make=True)
        self._drop_temporary(fd)
        os.link(source, TEMPORARY, dst_dir_fd=fd)
        os.rename(TEMPORARY, name, src_dir_fd=fd, dst_dir_fd=fd)
        self._drop_temporary(fd)  # rename does nothing where both are one file already

    def copy_in(self, source: str, path: str) -> None:
        fd, name = self._at(path, make=True)
        self._drop_temporary(fd)
        with open(source, "rb") as old:
            out = os.open(TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
            with os.fdopen(out, "wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
                found = os.fstat(old.fileno())
                os.fchmod(new.fileno(), stat.S_IMODE(found.st_mode))
                os.utime(new.fileno(), ns=(found.st_mtime_ns, found.st_mtime_ns))
        os.rename(TEMPORARY, name, src_dir_fd=fd, dst_dir_fd=fd)

    def create(self, path: str, mode: int) -> int:
        """Descriptor of a new file, open for writing, in place of what is there."""
        fd, name = self._at(path, make=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(name, flags, mode, dir_fd=fd)

    def folder(self, path: str, mode: int) -> None:
        fd, name = self._at(path, make=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=fd)
        os.close(os.open(name, FOLDER, dir_fd=fd))  # NotADirectoryError where it is a link

    def symlink(self, target: str, path: str) -> None:
        fd, name = self._at(path, make=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        os.symlink(target, name, dir_fd=fd)

    def hard_link(self, old: str, path: str) -> None:
        """A second name of a file that is there; never of what a link points to."""
        old_fd, old_name = self._at(old)
        source = os.dup(old_fd)
        try:
            fd, name = self._at(path, make=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
            os.link(old_name, name, src_dir_fd=source, dst_dir_fd=fd, follow_symlinks=False)
        finally:
            os.close(source)

    def prune(self, path: str) -> None:
        """Remove the folders above `path` that are empty now."""
        self._forget()
        while "/" in path:
            path = path.rsplit("/", 1)[0]
            try:
                fd, name = self._at(path)
                os.rmdir(name, dir_fd=fd)
            except OSError:
                return
            finally:
                self._forget()

    def _at(self, path: str, make: bool = False) -> tuple[int, str]:
        """Descriptor of the folder that holds `path`, and the last part; the last one is kept open."""
        folder, _, name = path.rpartition("/")
        if not folder:
            return self._root, name
        if folder == self._last[0]:
            return self._last[1], name
        self._forget()
        fd = os.dup(self._root)
        try:
            for part in folder.split("/"):
                if make:
                    self._make(fd, part)
                deeper = os.open(part, FOLDER, dir_fd=fd)
                os.close(fd)
                fd = deeper
        except OSError:
            os.close(fd)
            raise
        self._last = (folder, fd)
        return fd, name

    def _make(self, fd: int, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
            if self._gid >= 0:
                os.chown(name, -1, self._gid, dir_fd=fd)
            os.chmod(name, self._mode, dir_fd=fd)

    def _forget(self) -> None:
        if self._last[0]:
            os.close(self._last[1])
        self._last = ("", self._root)

    def _drop_temporary(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(TEMPORARY, dir_fd=fd)
