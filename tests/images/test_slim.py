"""What slimming leaves behind: libraries that ld.so still maps, the same bytes each time."""

import os
import struct
import sys
from pathlib import Path

from images.slim import loadable, settle_times


def test_a_segment_that_is_out_of_line_is_noticed():
    library = bytearray(Path(sys.executable).resolve().read_bytes())
    assert loadable(library)
    (start,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    loads = [start + size * n for n in range(count)]
    at = next(each for each in loads if struct.unpack_from("<I", library, each)[0] == 1)
    (offset,) = struct.unpack_from("<Q", library, at + 8)
    struct.pack_into("<Q", library, at + 8, offset + 8)
    assert not loadable(library)


def test_the_time_of_everything_is_settled(tmp_path):
    """Of links to folders too, which no walk enters."""
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "lib" / "deep" / "file").touch()
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "lib" / "link").symlink_to("nowhere")
    settle_times(tmp_path, 1767225600)
    all_of_it = [tmp_path, *tmp_path.rglob("*")]
    assert len(all_of_it) == 6
    assert {os.lstat(path).st_mtime for path in all_of_it} == {1767225600}
