"""Find the vector extensions that x86-64 machine code uses: instruction lengths, and the encodings of AVX and later.

Lengths and encodings are those of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, appendix
A (opcode maps) and chapter 2 (VEX and EVEX). Code is decoded from the start of a function, because the same bytes
inside of an operand mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

_LEGACY = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")

# One-byte opcodes, by whether a ModRM byte follows and how many bytes an immediate has (4: two after prefix 66).
_MODRM = frozenset(
    {
        *(row + low for row in range(0, 0x40, 8) for low in range(4)),
        *(0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7),
        *(*range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF),
    }
)
_IMMEDIATE = {
    **dict.fromkeys([*(row + 4 for row in range(0, 0x40, 8)), 0x6A, 0x6B, *range(0x70, 0x81), 0x83, 0xA8], 1),
    **dict.fromkeys([*range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xCD, *range(0xE0, 0xE8), 0xEB], 1),
    **dict.fromkeys([*(row + 5 for row in range(0, 0x40, 8)), 0x68, 0x69, 0x81, 0xA9, *range(0xB8, 0xC0), 0xC7], 4),
    0xC2: 2,
    0xCA: 2,
    0xC8: 3,
    0xE8: 4,
    0xE9: 4,
}
# Two-byte opcodes (after 0F) without a ModRM byte, and those with an immediate.
_PLAIN_0F = frozenset([5, 6, 7, 8, 9, 0xB, 0xE, *range(0x30, 0x38), 0x77, *range(0x80, 0x90), 0xA0, 0xA1, 0xA2])
_PLAIN_0F |= frozenset([0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)])
_BYTE_0F = frozenset([*range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6])

# 256-bit integer instructions, by map (1: 0F, 2: 0F38, 3: 0F3A); at 128 bits the same opcodes are AVX.
_AVX2_WIDE = {
    1: frozenset([*range(0x60, 0x6E), *range(0x70, 0x77), *range(0xD1, 0xE6), *range(0xE8, 0xF7), *range(0xF8, 0xFF)])
    - {0xD6},
    2: frozenset([*range(0x0C), *range(0x1C, 0x1F), *range(0x20, 0x26), 0x28, 0x29, 0x2B, *range(0x30, 0x42)]),
    3: frozenset([0x00, 0x01, 0x02, 0x0E, 0x0F, 0x38, 0x39, 0x42, 0x46]),
}
_AVX2 = frozenset([0x16, 0x36, 0x45, 0x46, 0x47, 0x58, 0x59, 0x5A, 0x78, 0x79, 0x8C, 0x8E, 0x90, 0x91, 0x92, 0x93])
_FMA = frozenset(row + low for row in (0x90, 0xA0, 0xB0) for low in range(6, 16))
_BMI = frozenset([0xF2, 0xF3, 0xF5, 0xF6, 0xF7])
_AMX = frozenset([0x49, 0x4B, 0x5C, 0x5E])


class Undecodable(ValueError):
    """Bytes that are no instruction, such as data between functions."""


def features(code: bytes) -> Iterator[str]:
    """The extension of each vector instruction of one function, in order; Undecodable where decoding has to stop.

    The names are those of ``/proc/cpuinfo``: ``avx``, ``f16c``, ``fma``, ``avx2``, ``bmi2``, ``avx512f``, ``amx_tile``.
    """
    at = 0
    while at < len(code):
        size, feature = _instruction(code, at)
        if feature:
            yield feature
        at += size


def length(code: bytes, at: int) -> int:
    """The length of the instruction at an offset."""
    return _instruction(code, at)[0]


def _instruction(code: bytes, at: int) -> tuple[int, str]:
    """The length of an instruction, and the extension that it belongs to, or an empty text."""
    start = at
    try:
        narrow = False
        while code[at] in _LEGACY:
            narrow |= code[at] == 0x66
            at += 1
        wide = False
        if code[at] & 0xF0 == 0x40:
            wide = bool(code[at] & 8)
            at += 1
        first = code[at]
        if first in (0xC4, 0xC5, 0x62):
            size, feature = _vector(code, at)
            return at + size - start, feature
        if first == 0x0F:
            return at + _two_byte(code, at) - start, ""
        return at + _one_byte(code, at, narrow=narrow, wide=wide) - start, ""
    except IndexError as error:
        raise Undecodable(f"an instruction at {start} ends behind its function") from error


def _one_byte(code: bytes, at: int, *, narrow: bool, wide: bool) -> int:
    opcode = code[at]
    immediate = _IMMEDIATE.get(opcode, 0)
    if 0xA0 <= opcode <= 0xA3 or (wide and 0xB8 <= opcode <= 0xBF):
        return 9
    if opcode in (0xF6, 0xF7) and not code[at + 1] & 0x30:
        immediate = 1 if opcode == 0xF6 else 4
    if immediate == 4 and narrow and opcode not in (0xE8, 0xE9):
        immediate = 2
    return 1 + (_operand(code, at + 1) if opcode in _MODRM else 0) + immediate


def _two_byte(code: bytes, at: int) -> int:
    opcode = code[at + 1]
    if opcode == 0x38:
        return 3 + _operand(code, at + 3)
    if opcode == 0x3A:
        return 4 + _operand(code, at + 3)
    if opcode in _PLAIN_0F:
        return 6 if 0x80 <= opcode < 0x90 else 2
    return 2 + _operand(code, at + 2) + (opcode in _BYTE_0F)


def _operand(code: bytes, at: int) -> int:
    """The length of a ModRM byte with its SIB byte and displacement."""
    mode, low = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1
    sib = low == 4
    base = code[at + 1] & 7 if sib else low
    displacement = (4 if base == 5 else 0, 1, 4)[mode]
    return 1 + sib + displacement


def _vector(code: bytes, at: int) -> tuple[int, str]:
    """A VEX or EVEX instruction: its length from the first byte of the prefix, and its extension."""
    first = code[at]
    if first == 0xC5:
        size, plane, long = 2, 1, bool(code[at + 1] & 4)
    elif first == 0xC4:
        size, plane, long = 3, code[at + 1] & 31, bool(code[at + 2] & 4)
    else:
        size, plane, long = 4, code[at + 1] & 7, False
        if code[at + 1] & 8 or not code[at + 2] & 4:
            raise Undecodable(f"no EVEX prefix at {at}")
    opcode = code[at + size]
    if plane not in (1, 2, 3) and not (first == 0x62 and plane in (5, 6)):
        raise Undecodable(f"no opcode map {plane} at {at}")
    whole = size + 1
    if not (plane == 1 and opcode == 0x77):
        whole += _operand(code, at + size + 1) + (plane == 3 or (plane == 1 and opcode in _BYTE_0F))
    return whole, "avx512f" if first == 0x62 else _extension(plane, opcode, long)


def _extension(plane: int, opcode: int, long: bool) -> str:
    """The extension of a VEX instruction. ``long``: it uses 256 bits."""
    if (plane == 2 and opcode in _BMI) or (plane == 3 and opcode == 0xF0):
        return "bmi2"
    if plane == 2 and opcode in _FMA:
        return "fma"
    if plane == 2 and opcode in _AMX:
        return "amx_tile"
    if (plane, opcode) in ((2, 0x13), (3, 0x1D)):
        return "f16c"
    if (plane == 2 and opcode in _AVX2) or (long and opcode in _AVX2_WIDE[plane]):
        return "avx2"
    return "avx"
