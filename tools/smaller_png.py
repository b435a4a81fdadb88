"""A picture of a page with at most 255 colours. Text and lines stay sharp.

    python tools/smaller_png.py IN.png OUT.png

Pictures of the docs are made so: PICTURES=pictures pytest tests/integration/airflow/test_page_pictures.py
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"
Colour = tuple[int, int, int]


def smaller(data: bytes) -> bytes:
    """Of a PNG with 8 bits a channel, as Chromium makes them."""
    chunks = list(_chunks(data))
    width, height, bits, kind = struct.unpack(">IIBB", chunks[0][1][:10])
    assert bits == 8 and kind in (2, 6), "8 bits a channel, RGB or RGBA"
    raw = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    rows = list(_rows(raw, width, height, 3 if kind == 2 else 4))
    palette, index = _palette(Counter(colour for row in rows for colour in row))
    packed = zlib.compress(b"".join(b"\0" + bytes(index[colour] for colour in row) for row in rows), 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    plain = b"".join(bytes(colour) for colour in palette)
    made = [(b"IHDR", header), (b"PLTE", plain), (b"IDAT", packed), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(name, body) for name, body in made)


def _palette(counted: Counter[Colour]) -> tuple[list[Colour], dict[Colour, int]]:
    """The most frequent colours, and for each colour the one nearest to it."""
    palette = [colour for colour, _ in counted.most_common(255)]
    known = {colour: number for number, colour in enumerate(palette)}
    return palette, {colour: known[colour] if colour in known else _nearest(colour, palette) for colour in counted}


def _nearest(colour: Colour, palette: list[Colour]) -> int:
    return min(range(len(palette)), key=lambda n: sum((a - b) ** 2 for a, b in zip(colour, palette[n], strict=True)))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _rows(raw: bytes, width: int, height: int, channels: int) -> Iterator[list[Colour]]:
    """The pixels, row by row, with the filters undone. Source: PNG specification, 9.2."""
    size, above = width * channels, bytearray(width * channels)
    for number in range(height):
        at = number * (size + 1)
        line = bytearray(raw[at + 1 : at + 1 + size])
        _undo(raw[at], line, above, channels)
        yield [(line[n], line[n + 1], line[n + 2]) for n in range(0, size, channels)]
        above = line


def _undo(kind: int, line: bytearray, above: bytearray, channels: int) -> None:
    for n in range(len(line)):
        left = line[n - channels] if n >= channels else 0
        corner = above[n - channels] if n >= channels else 0
        predicted = (0, left, above[n], (left + above[n]) // 2, _paeth(left, above[n], corner))[kind]
        line[n] = (line[n] + predicted) & 255


def _paeth(left: int, up: int, corner: int) -> int:
    away = [abs(left + up - corner - each) for each in (left, up, corner)]
    return (left, up, corner)[away.index(min(away))]


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(smaller(Path(sys.argv[1]).read_bytes()))
