"""Reads and strips programs and libraries in ELF (64 bits, little-endian)."""

import re
import struct

MACHINES = {62: "amd64", 183: "arm64"}
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29
_ALLOCATED = 2
_NOBITS = 8
_SECTION = struct.Struct("<IIQQQQIIQQ")


class Elf:
    """One file, of which the headers have been read."""

    def __init__(self, data: bytes, name: str = "file"):
        self.data, self.name = data, name
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{name} is no 64-bit little-endian ELF file")
        (_, machine, _, _, programs, self._sections, _, _, program_size, count, section_size, self._count, self._names) = (
            struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        )
        self.architecture = MACHINES.get(machine)
        if self.architecture is None:
            raise ValueError(f"{name} is for machine {machine}; expected one of {', '.join(MACHINES.values())}")
        if count and program_size != 56 or self._count and section_size != _SECTION.size:
            raise ValueError(f"{name} has headers of an unknown size")
        # Type, offset, address and size in the file of each segment.
        self.segments = [
            (kind, offset, address, size)
            for kind, _, offset, address, _, size, _, _ in (
                struct.unpack_from("<IIQQQQQQ", data, programs + i * 56) for i in range(count)
            )
        ]

    def _segment(self, wanted: int):
        return next(((o, s) for kind, o, _, s in self.segments if kind == wanted), None)

    @property
    def interpreter(self):
        """Path of the dynamic loader; None for a static program."""
        found = self._segment(_INTERP)
        return found and self.data[found[0] : found[0] + found[1]].rstrip(b"\0").decode()

    def _dynamic(self):
        found = self._segment(_DYNAMIC)
        if found is None:
            return []
        return struct.iter_unpack("<QQ", self.data[found[0] : found[0] + found[1] // 16 * 16])

    def _strings(self, *tags: int):
        entries = list(self._dynamic())
        table = next((value for tag, value in entries if tag == _STRTAB), 0)
        for kind, offset, address, size in self.segments:
            if kind == _LOAD and address <= table < address + size:
                table += offset - address
                break
        for tag, value in entries:
            if tag in tags:
                start = table + value
                yield self.data[start : self.data.index(b"\0", start)].decode()

    @property
    def needed(self):
        """Names of the libraries that it is linked with."""
        return list(self._strings(_NEEDED))

    @property
    def search(self):
        """Directories in which it makes the loader search first."""
        return [d for value in self._strings(_RPATH, _RUNPATH) for d in value.split(":") if d]

    def _headers(self):
        return [_SECTION.unpack_from(self.data, self._sections + i * _SECTION.size) for i in range(self._count)]

    def _name(self, headers, header) -> bytes:
        start = headers[self._names][4] + header[0]
        return self.data[start : self.data.index(b"\0", start)]

    @property
    def comment(self) -> str:
        """What the compilers left, such as `rustc version 1.95.0 (…)`; parts are separated by newlines."""
        headers = self._headers() if self._sections else []
        for header in headers:
            if self._name(headers, header) == b".comment":
                return self.data[header[4] : header[4] + header[5]].replace(b"\0", b"\n").decode(errors="replace")
        return ""

    @property
    def glibc(self):
        """Oldest version of the GNU C library that has all that it uses, such as (2, 34); None without that library."""
        found = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"\0GLIBC_(\d+\.\d+)(?:\.\d+)?(?=\0)", self.data)}
        return max(found, default=None) if self.interpreter else None

    def strip(self) -> bytes:
        """Returns the file without symbols and debug information, as `strip` does.

        What is loaded stays as it is, and so does `.comment`.
        """
        if not self._sections or not self._count:
            return self.data
        headers = self._headers()
        loaded = [h for h in headers[1:] if h[2] & _ALLOCATED]
        if headers[1 : len(loaded) + 1] != loaded:
            raise ValueError(f"{self.name} has sections that are not loaded between those that are")
        end = max((o + s for kind, o, _, s in self.segments if kind == _LOAD), default=0)
        end = max([end] + [h[4] + h[5] for h in loaded if h[1] != _NOBITS])
        out = bytearray(self.data[:end])
        names = bytearray(b"\0")
        kept = [headers[0]]

        def keep(header, name: bytes, offset: int):
            # Links to sections that are gone, which only those that are not loaded have.
            link = header[6] if header[6] <= len(loaded) else 0
            kept.append((len(names), *header[1:4], offset, header[5], link, *header[7:]))
            names.extend(name + b"\0")

        for header in loaded:
            keep(header, self._name(headers, header), header[4])
        for header in headers[len(loaded) + 1 :]:
            if self._name(headers, header) == b".comment":
                keep(header, b".comment", len(out))
                out += self.data[header[4] : header[4] + header[5]]
        offset, name = len(out), len(names)
        names.extend(b".shstrtab\0")
        kept.append((name, 3, 0, 0, offset, len(names), 0, 0, 1, 0))
        out += names
        out += bytes(-len(out) % 8)
        struct.pack_into("<Q", out, 40, len(out))
        struct.pack_into("<HH", out, 60, len(kept), len(kept) - 1)
        for header in kept:
            out += _SECTION.pack(*header)
        return bytes(out)
