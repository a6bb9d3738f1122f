"""What stripping may leave behind: a library that ld.so still maps."""

import struct
import sys
from pathlib import Path

from images.slim import loadable


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
