"""What a compiled GPU kernel needs, read off its binary: an ELF file in which NVIDIA's compiler notes it.

A program of NVIDIA's tells the same, but takes a tenth of a second each time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

NOTES = ".nv.info"
SIZED = 4
"""A note of this form is followed by as many bytes as it says."""
REGISTERS, FRAME = 0x2F, 0x11
"""Notes of a function: its number in the table of symbols, then registers a thread, or bytes of stack."""


def needs(cubin: bytes) -> tuple[int, int] | None:
    """Registers and bytes of stack a thread of the kernel that needs most; none if the file is of a form that
    is not known here."""
    try:
        found = list(_notes(cubin))
    except (struct.error, IndexError, OverflowError, ValueError):
        return None
    registers = [value for note, value in found if note == REGISTERS]
    stack = [value for note, value in found if note == FRAME]
    return (max(registers), max(stack, default=0)) if registers else None


def _notes(cubin: bytes) -> Iterator[tuple[int, int]]:
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, named = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + size * n) for n in range(count)]
    names = sections[named][4]
    for name, _, _, _, start, length, *_ in sections:
        first = names + name
        if cubin[first : cubin.index(b"\0", first)].decode(errors="replace") != NOTES:
            continue
        place, end = start, start + length
        while place < end:
            form, note, bytes_ = struct.unpack_from("<BBH", cubin, place)
            place += 4
            if form == SIZED:
                if note in (REGISTERS, FRAME):
                    yield note, struct.unpack_from("<II", cubin, place)[1]
                place += bytes_
