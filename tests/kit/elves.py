"""Small shared libraries, written byte by byte: each part can be right, wrong or missing. No compiler is needed.

One that is right is opened by the dynamic loader of x86_64.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
READ_WRITE, EXECUTE = 6, 1
_DT = {"NEEDED": 1, "HASH": 4, "STRTAB": 5, "SYMTAB": 6, "STRSZ": 10, "SYMENT": 11, "SONAME": 14, "RELR": 36}
_DT |= {"RELRSZ": 35, "RELRENT": 37, "VERSYM": 0x6FFFFFF0, "FLAGS_1": 0x6FFFFFFB, "VERNEED": 0x6FFFFFFE}
_DT |= {"VERNEEDNUM": 0x6FFFFFFF, "VERDEF": 0x6FFFFFFC, "VERDEFNUM": 0x6FFFFFFD, "RELA": 7, "RELASZ": 8, "RELAENT": 9}
_KINDS = {".dynsym": 11, ".dynstr": 3, ".hash": 5, ".dynamic": 6, ".gnu.version": 0x6FFFFFFF}
_KINDS |= {".gnu.version_r": 0x6FFFFFFE, ".gnu.version_d": 0x6FFFFFFD, ".rela.dyn": 4, ".shstrtab": 3, ".relr.dyn": 19}
_TAGS = {".dynsym": "SYMTAB", ".dynstr": "STRTAB", ".hash": "HASH", ".gnu.version": "VERSYM"}
_TAGS |= {".gnu.version_r": "VERNEED", ".gnu.version_d": "VERDEF", ".rela.dyn": "RELA", ".relr.dyn": "RELR"}


@dataclass(frozen=True)
class Library:
    """The parts of a library. ``versions`` are (file, version, weak); ``undefined`` is looked up when it is opened.

    ``sections_move``: the section table leads to a dynamic section of its own, without needs.
    """

    needed: tuple[str, ...] = ("libc.so.6",)
    versions: tuple[tuple[str, str, bool], ...] = ()
    offered: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    exported: tuple[str, ...] = ("exported",)
    soname: str = ""
    machine: int = 62
    kind: int = 3
    os_abi: int = 0
    padding: int = 0
    entry_size: int = 56
    loads: bool = True
    align: int = 4096
    dynamic: bool = True
    stack: int | None = READ_WRITE
    flags_1: int = 0
    relative: bool = False
    sections: bool = True
    sections_move: bool = False

    def to_bytes(self) -> bytes:
        """The file."""
        return _Writer(self).written()


@dataclass
class _Writer:
    library: Library
    names: bytes = b"\0"
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    data: bytearray = field(default_factory=lambda: bytearray(64 + 3 * 56))

    def name(self, text: str) -> int:
        """The place of a name in the table of names."""
        at = self.names.find(b"\0" + text.encode() + b"\0")
        if at < 0:
            at = len(self.names) - 1
            self.names += text.encode() + b"\0"
        return at + 1

    def put(self, name: str, content: bytes) -> None:
        """Append a section."""
        if content:
            self.data += bytes(-len(self.data) % 8)
            self.parts[name] = len(self.data), len(content)
            self.data += content

    def written(self) -> bytes:
        """All of it: what names need comes before the names, and the tables of places come last."""
        one = self.library
        symbols = [(name, 0) for name in one.undefined] + [(name, 4) for name in one.exported]
        table = bytes(24) + b"".join(struct.pack("<IBBHQQ", self.name(n), 0x12, 0, s, 16 * s, 0) for n, s in symbols)
        needs, offers = self.needs(), self.offers()
        listed = [("NEEDED", self.name(name)) for name in one.needed]
        listed += [("SONAME", self.name(one.soname))] if one.soname else []
        self.put(".dynsym", table)
        self.put(".dynstr", self.names)
        count = len(symbols) + 1
        chain = [1 if symbols else 0, 0, *range(2, count), 0][: 1 + count]  # one bucket, with every symbol
        self.put(".hash", struct.pack(f"<{3 + count}I", 1, count, *chain))
        self.put(".gnu.version_r", needs)
        self.put(".gnu.version_d", offers)
        self.put(".gnu.version", struct.pack(f"<{count}H", *[1] * count) if needs or offers else b"")
        self.put(".relr.dyn", b"\0" * 8 if one.relative else b"")
        slots = len(self.data) + -len(self.data) % 8 + 24 * len(one.undefined)
        rela = b"".join(struct.pack("<QQq", slots + 8 * i, (i + 1) << 32 | 6, 0) for i in range(len(one.undefined)))
        self.put(".rela.dyn", rela)
        self.put(".got", bytes(8 * len(one.undefined)))
        self.put(".dynamic", self.dynamic(listed, len({f for f, _, _ in one.versions})))
        return self.finished()

    def needs(self) -> bytes:
        """.gnu.version_r: each file with its versions."""
        files = list(dict.fromkeys(file for file, _, _ in self.library.versions))
        whole = b""
        for file in files:
            some = [(name, weak) for of, name, weak in self.library.versions if of == file]
            last = file == files[-1]
            whole += struct.pack("<HHIII", 1, len(some), self.name(file), 16, 0 if last else 16 + 16 * len(some))
            for index, (name, weak) in enumerate(some):
                step = 16 if index + 1 < len(some) else 0
                whole += struct.pack("<IHHII", _hash(name), 2 * weak, 2 + len(whole) % 999, self.name(name), step)
        return whole

    def offers(self) -> bytes:
        """.gnu.version_d: each version that the library defines."""
        whole = b""
        for index, name in enumerate(self.library.offered):
            step = 28 if index + 1 < len(self.library.offered) else 0
            whole += struct.pack("<HHHHIII", 1, 1 if not index else 0, index + 1, 1, _hash(name), 20, step)
            whole += struct.pack("<II", self.name(name), 0)
        return whole

    def dynamic(self, listed: list[tuple[str, int]], files: int) -> bytes:
        """The dynamic section."""
        one = self.library
        listed += [(_TAGS[name], at) for name, (at, _) in self.parts.items() if name in _TAGS]
        listed += [("STRSZ", self.parts[".dynstr"][1]), ("SYMENT", 24)]
        listed += [("VERNEEDNUM", files)] if one.versions else []
        listed += [("VERDEFNUM", len(one.offered))] if one.offered else []
        listed += [("RELASZ", 24 * len(one.undefined)), ("RELAENT", 24)] if one.undefined else []
        listed += [("RELRSZ", 0), ("RELRENT", 8)] if one.relative else []
        listed += [("FLAGS_1", one.flags_1)] if one.flags_1 else []
        return b"".join(struct.pack("<QQ", _DT[tag], value) for tag, value in listed) + bytes(16)

    def finished(self) -> bytes:
        """The file with its tables of segments and sections."""
        one, (at, size) = self.library, self.parts[".dynamic"]
        if one.sections_move:
            self.put(".moved", self.dynamic([], 0))
        sections = self.sections()
        whole = len(self.data)
        segments = [(_LOAD, READ_WRITE, 0, whole, one.align)] if one.loads else []
        segments += [(_DYNAMIC, READ_WRITE, at, size, 8)] if one.dynamic else []
        segments += [] if one.stack is None else [(_STACK, one.stack, 0, 0, 16)]
        for index, (kind, flags, offset, length, align) in enumerate(segments):
            struct.pack_into(
                "<IIQQQQQQ", self.data, 64 + 56 * index, kind, flags, offset, offset, offset, length, length, align
            )
        place = sections[0] if one.sections else 0
        ident = b"\x7fELF\x02\x01\x01" + bytes([one.os_abi, 0, one.padding]) + bytes(6)
        head = struct.pack(
            "<HHIQQQIHHHHHH", one.kind, one.machine, 1, 0, 64, place, 0, 64, one.entry_size, len(segments), 64,
            sections[1] if one.sections else 0, sections[1] - 1 if one.sections else 0,
        )  # fmt: skip
        self.data[:64] = ident + head
        return bytes(self.data)

    def sections(self) -> tuple[int, int]:
        """Writes the section table; its place and how many there are."""
        texts = b"\0" + b"".join(name.encode() + b"\0" for name in (*self.parts, ".shstrtab"))
        self.put(".shstrtab", texts)
        names = list(self.parts)
        moved = self.parts.get(".moved")
        rows = [bytes(64)]
        for name, (at, size) in self.parts.items():
            if name == ".dynamic" and moved:
                at, size = moved
            link = (
                names.index(".dynstr") + 1 if name in (".dynsym", ".dynamic", ".gnu.version_r", ".gnu.version_d") else 0
            )
            info = {".gnu.version_r": len({f for f, _, _ in self.library.versions}),
                    ".gnu.version_d": len(self.library.offered)}.get(name, 1)  # fmt: skip
            place = texts.index(b"\0" + name.encode() + b"\0") + 1
            rows.append(struct.pack("<IIQQQQIIQQ", place, _KINDS.get(name, 1), 2, at, at, size, link, info, 8, 24))
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += b"".join(rows)
        return at, len(rows)


def _hash(name: str) -> int:
    """The hash of a version's name (System V ABI)."""
    value = 0
    for letter in name.encode():
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def cubin(compiler: str) -> bytes:
    """A cubin without code whose note names a compiler, as ptxas of CUDA 13 writes it."""
    release = compiler.rpartition(".")[0]
    said = f"\0ptxas\0Cuda compilation tools, release {release}, V{compiler}\0Build cuda\0-m 64 \0".encode()
    note = struct.pack("<3I12s6I", 12, 24 + len(said), 2000, b"NVIDIA Corp", 2, 0, 1, 7, 54, 96) + said
    names = b"\0.shstrtab\0.note.nv.tkinfo\0"
    head = b"\x7fELF\x02\x01\x01" + bytes([65, 8]) + bytes(7)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(names) + len(note), 90 << 8, 64, 56, 0, 64, 3, 1)
    places = ((0, 0, 0, 0), (1, 3, 64, len(names)), (11, 7, 64 + len(names), len(note)))
    table = (struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0) for name, kind, at, size in places)
    return head + names + note + b"".join(table)
