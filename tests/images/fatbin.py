"""Which cards a CUDA library has machine code for; also runs inside an image: `fatbin.py LIBRARY…`.

A fat binary begins with the magic 0xBA55ED50, version, header size (16) and size; in it entries
follow each other: kind (1 PTX, 2 machine code), version, header size, size, and at offset 28 the
architecture, 61 for sm_61. (Layout as cuobjdump prints it; checked against its list for cuDNN.)
"""

import json
import mmap
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
MACHINE_CODE = 2


def architectures(path):
    """The set of architectures that the library at `path` holds machine code for."""
    found = set()
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        at = data.find(MAGIC)
        while at >= 0:
            header, size = struct.unpack_from("<xxHQ", data, at + 4)
            end = at + header + size
            if header == 16 and end <= len(data):
                found |= _entries(data, at + header, end)
                at = end - 1
            at = data.find(MAGIC, at + 1)
    return found


def _entries(data, at, end):
    found = set()
    while at + 32 <= end:
        kind, header, size, architecture = struct.unpack_from("<HxxIQ12xI", data, at)
        if kind == MACHINE_CODE:
            found.add(architecture)
        at += header + size
    return found


def serves(found, card):
    """Machine code runs on its own architecture and on later minor versions of it."""
    return any(each // 10 == card // 10 and each <= card for each in found)


if __name__ == "__main__":
    print(json.dumps({path: sorted(architectures(path)) for path in sys.argv[1:]}))
