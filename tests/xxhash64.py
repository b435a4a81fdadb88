"""xxHash64 of bytes, written from its specification: for tests that compare a digest with another reader's.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from struct import unpack_from

MASK = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxhash64(data: bytes, seed: int) -> int:
    place, length = 0, len(data)
    if length >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while place + 32 <= length:
            words = unpack_from("<4Q", data, place)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            place += 32
        total = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * P1 + P4) & MASK
    else:
        total = (seed + P5) & MASK
    total = (total + length) & MASK
    while place + 8 <= length:
        total = (_rotate(total ^ _round(0, unpack_from("<Q", data, place)[0]), 27) * P1 + P4) & MASK
        place += 8
    if place + 4 <= length:
        total = (_rotate(total ^ (unpack_from("<I", data, place)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        place += 4
    for byte in data[place:]:
        total = _rotate(total ^ (byte * P5 & MASK), 11) * P1 & MASK
    total = (total ^ total >> 33) * P2 & MASK
    total = (total ^ total >> 29) * P3 & MASK
    return total ^ total >> 32


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * P2) & MASK, 31) * P1 & MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & MASK
