"""Draws a folder of small pictures to learn from: discs, squares and crosses, a folder each.

python draw.py FOLDER [COUNT]
"""

import random
import struct
import sys
import zlib
from pathlib import Path

SIDE = 24


def inside(kind, x, y, size):
    """Whether a point, seen from the middle of the shape, belongs to it."""
    if kind == "disc":
        return x * x + y * y <= size * size
    if kind == "square":
        return max(abs(x), abs(y)) <= size * 0.85
    return min(abs(x), abs(y)) <= size * 0.3 and max(abs(x), abs(y)) <= size


def picture(kind, dice):
    """Grey values of one picture, row by row: the shape somewhere, in some size, with noise."""
    size = dice.uniform(4, 9)
    middle = [dice.uniform(size, SIDE - size) for _ in range(2)]
    light, dark = dice.uniform(150, 255), dice.uniform(0, 90)
    rows = []
    for y in range(SIDE):
        shade = [
            light if inside(kind, x - middle[0], y - middle[1], size) else dark for x in range(SIDE)
        ]
        rows.append(bytes(int(min(255, max(0, value + dice.gauss(0, 12)))) for value in shade))
    return rows


def png(rows):
    """The bytes of a PNG file (8 bits of grey)."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def main(folder, count=300):
    dice = random.Random(1)
    for kind in ("cross", "disc", "square"):
        (Path(folder) / kind).mkdir(parents=True, exist_ok=True)
        for i in range(int(count)):
            (Path(folder) / kind / f"{i:04}.png").write_bytes(png(picture(kind, dice)))


if __name__ == "__main__":
    main(*sys.argv[1:])
