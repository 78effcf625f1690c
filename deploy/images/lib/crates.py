"""The crates that a program is linked with, and the texts of their licenses."""

import html
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

LICENSE_FILE = re.compile(r"^(.*[-_.])?(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?$", re.I)
# Files of programs, not of lawyers.
NOT_TEXT = re.compile(r"\.(rs|c|h|py|sh|toml|json|html|png|svg|in)$", re.I)

# For crates that ship no text. {holder} stands for the authors.
MIT = """Copyright (c) {holder}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


class Unlicensed(Exception):
    """The text of a license is missing."""


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    license: str
    # Of the package that the registry sent; None for a crate of the workspace.
    checksum: str | None
    # Directory of its sources; relative to the workspace for a crate of it.
    directory: Path
    authors: tuple = ()
    description: str = ""
    repository: str = ""

    @property
    def key(self):
        return self.name, self.version


def expression(license: str) -> str:
    """Returns a license as an SPDX expression: older crates separate alternatives by slashes."""
    return re.sub(r"\s*/\s*", " OR ", license.strip())


def checksums(lock: str) -> dict:
    """Returns the checksums of Cargo.lock by name and version; those of the workspace have None."""
    found = {}
    for block in lock.split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(\w+) = "([^"]*)"$', block, re.M))
        found[fields["name"], fields["version"]] = fields.get("checksum")
    return found


def tree(text: str):
    """Reads `cargo tree --prefix depth`: returns the root, and the sorted dependencies of each crate.

    Crates are pairs of name and version.
    """
    edges, above = {}, []
    for line in text.splitlines():
        depth, name, version = re.match(r"(\d+)([\w-]+) v(\S+)", line).groups()
        crate = name, version
        edges.setdefault(crate, set())
        del above[int(depth) :]
        if above:
            edges[above[-1]].add(crate)
        above.append(crate)
    root = next(iter(edges))
    return root, {crate: sorted(below) for crate, below in sorted(edges.items())}


def seen(program: bytes) -> set:
    """Returns the crates of a registry whose paths are in the program, as in the places of panics."""
    paths = re.findall(rb"registry/src/[\w.-]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/", program)
    return {(name.decode(), version.decode()) for name, version in paths}


def _cargo(root: Path, *arguments: str) -> str:
    done = subprocess.run(["cargo", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"cargo {' '.join(arguments[:1])}: {done.stderr.strip()}")
    return done.stdout


class Workspace:
    """The packages of the workspace and of its registry, as cargo lists them."""

    def __init__(self, root: Path, target: str):
        self.root, self.target = root, target
        self.crates = {}
        sums = checksums((root / "Cargo.lock").read_text())
        listed = json.loads(_cargo(root, "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"))
        for package in listed["packages"]:
            directory = Path(package["manifest_path"]).parent
            if package["source"] is None:
                directory = directory.relative_to(root)
            crate = Crate(
                package["name"],
                package["version"],
                expression(package["license"] or ""),
                sums[package["name"], package["version"]],
                directory,
                tuple(package["authors"]),
                " ".join((package["description"] or "").split()),
                package["repository"] or "",
            )
            self.crates[crate.key] = crate

    def version(self, package: str) -> str:
        return next(version for name, version in self.crates if name == package)

    def linked(self, package: str, program: bytes):
        """Returns the root and the dependencies of each crate that a program is linked with.

        Raises if the program has a crate that Cargo.lock has not: it was built from another commit.
        """
        root, edges = tree(
            _cargo(
                self.root,
                "tree",
                "--locked",
                "--edges=normal,no-proc-macro",
                "--prefix=depth",
                f"--target={self.target}",
                f"--package={package}",
            )
        )
        # One `cargo build` of several packages enables the features that any of them enables, so that a program may
        # have more than its own tree.
        for crate in sorted(seen(program) - set(edges)):
            if crate not in self.crates:
                raise RuntimeError(f"the program of {package} has {' '.join(crate)}, which Cargo.lock has not")
            edges[crate] = []
        return root, dict(sorted(edges.items()))


def normalized(text: str) -> str:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\f", "\n").expandtabs().split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def own_texts(directory: Path) -> list[str]:
    """Returns the license texts in the sources of a crate, of what it includes as well."""
    found = []
    for at, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if name not in ("target", ".git", "tests", "benches", "examples"))
        for name in sorted(names):
            if LICENSE_FILE.match(name) and not NOT_TEXT.search(name):
                text = (Path(at) / name).read_bytes().decode(errors="replace")
                # A file may only name another file, which is a symbolic link that was packed on Windows.
                if len(text.split()) > 5:
                    found.append(normalized(text))
    return found


def texts(crate: Crate, apache: str) -> list[str]:
    """Returns the license texts of a crate of a registry; without files of its own, those that its license means."""
    found = own_texts(crate.directory)
    if found:
        return found
    known = {"Apache-2.0": apache, "MIT": MIT.format(holder=", ".join(crate.authors) or f"the authors of {crate.name}")}
    names = re.findall(r"[\w.-]+", re.sub(r"\b(OR|AND|WITH)\b", " ", crate.license))
    chosen = [name for name in names if name in known]
    alternatives = " AND " not in crate.license and " WITH " not in crate.license
    if not chosen or not alternatives and len(chosen) < len(names):
        raise Unlicensed(f"crate {crate.name} {crate.version} ({crate.license}) has no license text")
    return [normalized(known[name]) for name in chosen]


def plain(page: str) -> str:
    """Returns the text of an HTML page."""
    page = re.sub(r"(?is)<(style|script|head).*?</\1>", "", page)
    page = re.sub(r"(?i)<(br|/p|/h\d|/li|/tr|/div)[^>]*>", "\n", page)
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    return normalized(re.sub(r"\n\s*\n\s*\n+", "\n\n", text))


def notices(title: str, rows) -> str:
    """Returns one document with all licenses: `rows` are names, licenses and texts. A text is given once."""
    numbers, listed, lines = {}, [], []
    for name, license, found in sorted(rows):
        used = set()
        for text in found:
            # Copies that differ in line breaks only are one.
            key = " ".join(text.split())
            if key not in numbers:
                numbers[key] = len(numbers) + 1
                listed.append(text)
            used.add(numbers[key])
        lines.append(f"{name}: {license or 'see the text'} [{', '.join(map(str, sorted(used)))}]")
    parts = [f"{title}\n\nThe numbers in brackets are those of the texts below.\n\n" + "\n".join(lines) + "\n"]
    parts += [f"{'=' * 40} {number}\n\n{text}" for number, text in enumerate(listed, 1)]
    return "\n".join(parts)
