"""Makes the images and the tarball of programs."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import crates
import oci
import sbom
import system
from elf import Elf
from oci import Entry
from programs import PROGRAMS, USER, Program

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "deploy/systemd"
DOC = "usr/share/doc/koord"
LIMIT = 40


class Failed(Exception):
    """The reason why nothing was written."""


@dataclass
class Options:
    """What the command line sets."""

    out: Path
    programs: list = field(default_factory=list)
    only: list = field(default_factory=list)
    repository: str = "localhost/koord"
    tag: str | None = None
    target: str | None = None
    sysroot: Path = Path("/")
    certificates: Path | None = None
    limit: float = LIMIT
    tarball: bool = False
    trees: bool = False


@dataclass
class Part:
    """A program with everything that comes with it."""

    program: Program
    data: bytes
    elf: Elf
    libraries: dict
    bill: bytes
    notices: bytes


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def epoch() -> int:
    """Returns the time of everything that is written: SOURCE_DATE_EPOCH, or that of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    text = given or _output("git", "log", "-1", "--format=%ct") or ""
    if not text.isdecimal() or int(text) >= 1 << 33:
        problem = f"SOURCE_DATE_EPOCH is {given!r}" if given else "there is no commit, and SOURCE_DATE_EPOCH is not set"
        raise Failed(f"{problem}; expected seconds since 1970")
    return int(text)


def revision() -> str:
    commit = _output("git", "rev-parse", "HEAD") or ""
    return f"{commit}-dirty" if commit and _output("git", "status", "--porcelain", "--untracked-files=no") else commit


def host() -> str:
    found = re.search(r"^host: (\S+)$", _output("rustc", "-vV") or "", re.M)
    if not found:
        raise Failed("rustc does not say for which target it builds; name one with --target")
    return found[1]


def compile_programs(wanted, target: str | None) -> list[Path]:
    """Builds the programs, each by itself so that it has its own features only, and returns their directories.

    The paths of this machine are replaced, so that they are not in the programs: the result does not depend on them.
    That makes other flags than those of an ordinary build, so it has a directory of its own.
    """
    base = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "images"
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    paths = [(str(base), "/target"), (home, "/cargo"), (str(ROOT), "/koord")]
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(base),
        "CARGO_INCREMENTAL": "0",
        "SOURCE_DATE_EPOCH": str(epoch()),
    }
    # The last one that fits a path is used.
    replaced = [f"--remap-path-prefix={old}={new}" for old, new in reversed(paths)]
    for name, flags in (
        ("RUSTFLAGS", replaced),
        ("CFLAGS", [f"-ffile-prefix-map={old}={new}" for old, new in paths]),
    ):
        environment[name] = " ".join([*filter(None, [environment.get(name)]), *flags])
    for program in wanted:
        command = ["cargo", "build", "--locked", "--quiet", f"--profile={program.profile}", f"--package={program.package}"]
        command += ["--bin", program.name] + ([f"--target={target}"] if target else [])
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            raise Failed(f"cargo did not build {program.name}")
    return [base.joinpath(*filter(None, [target, p])) for p in sorted({p.profile for p in wanted})]


class Builder:
    """Knows the workspace and the machine."""

    def __init__(self, options: Options):
        self.options = options
        self.time, self.revision = epoch(), revision()
        self.target = options.target or host()
        self.workspace = crates.Workspace(ROOT, self.target)
        self.version = self.workspace.version("koord")
        self.packages = system.Packages()
        self.apache = (ROOT / "LICENSE").read_text()
        self.certificates, self.authorities = system.certificates(options.certificates)
        self.texts = {}

    def wanted(self) -> list[Program]:
        known = {p.name: p for p in PROGRAMS if p.image or self.options.tarball}
        for name in self.options.only:
            if name not in known:
                raise Failed(f"there is no program {name}; there are: {', '.join(known)}")
        return [p for name, p in known.items() if not self.options.only or name in self.options.only]

    def _system(self, files) -> tuple[list, list]:
        """Returns the components of files of the build machine, and the rows of their licenses."""
        components, rows, owners = [], [], {}
        for name, path in files:
            owner = self.packages.owner(path) if self.options.sysroot == Path("/") or path in self.authorities else None
            owners.setdefault(owner, []).append((name, path))
        for owner, owned in sorted(owners.items(), key=lambda item: item[0] or ""):
            hashes = [(name, oci.digest(path.read_bytes())) for name, path in owned if path not in self.authorities]
            if owner is None:
                for name, content in hashes:
                    component = {"type": "library", "bom-ref": f"file:{name}", "name": Path(name).name}
                    components.append(component | {"hashes": [{"alg": "SHA-256", "content": content}]})
                    rows.append((f"/{name}", "of no package of the build machine", []))
                continue
            component = {
                "type": "library",
                "bom-ref": self.packages.url(owner),
                "name": owner,
                "version": self.packages.versions[owner][0],
                "purl": self.packages.url(owner),
            }
            if hashes:
                component["properties"] = [{"name": f"koord:sha256:/{name}", "value": content} for name, content in hashes]
            components.append(component)
            text = crates.normalized(self.packages.copyright(owner))
            rows.append((f"{owner} {self.packages.versions[owner][0]}", "", [text]))
        return components, rows

    def _standard_library(self, elf: Elf):
        """Returns the component and the license of Rust's standard library, which is in every program."""
        found = re.search(r"rustc version ([\w.-]+)", elf.comment)
        ours = re.match(r"rustc ([\w.-]+)", _output("rustc", "-V") or "")
        version = (found or ours or [None, "unknown"])[1]
        component = {
            "type": "library",
            "bom-ref": f"pkg:generic/rust-std@{version}",
            "name": "rust-std",
            "version": version,
            "purl": f"pkg:generic/rust-std@{version}",
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        }
        page = Path(_output("rustc", "--print", "sysroot") or "/none") / "share/doc/rust/COPYRIGHT-library.html"
        texts = [crates.plain(page.read_text(errors="replace"))] if page.exists() else []
        texts.append(crates.normalized(self.apache))
        return component, (f"rust-std {version}", "MIT OR Apache-2.0", texts)

    def part(self, program: Program, directories) -> Part:
        """Strips a program, and collects what comes with it."""
        path = next((d / program.name for d in directories if (d / program.name).is_file()), None)
        if path is None:
            raise Failed(f"there is no {program.name} in {', '.join(map(str, directories))}")
        whole = Elf(path.read_bytes(), str(path))
        elf = Elf(whole.strip(), str(path))
        libraries = system.libraries(elf, program.opens, self.options.sysroot)
        root, edges = self.workspace.linked(program.package, elf.data)
        files = list(libraries.items()) if program.image else []
        files += [("etc/ssl/certs/ca-certificates.crt", path) for path in self.authorities[:1]] if program.image else []
        if program.zones:
            zone = Path("/usr/share/zoneinfo/Europe/London")
            files += [("usr/share/zoneinfo", zone)] if zone.exists() and self.packages.owner(zone) else []
        components, rows = self._system(files)
        standard, row = self._standard_library(elf)
        rows.append(row)
        for key in edges:
            crate = self.workspace.crates[key]
            if not crate.license:
                raise Failed(f"crate {crate.name} {crate.version} has no license in its manifest")
            if crate.checksum:
                if key not in self.texts:
                    self.texts[key] = crates.texts(crate, self.apache)
                rows.append((f"{crate.name} {crate.version}", crate.license, self.texts[key]))
        bill = sbom.document(
            program,
            self.version,
            elf.data,
            root,
            edges,
            self.workspace.crates,
            [*components, standard],
            self.revision,
            self.time,
        )
        title = f"{program.name} {self.version} is under the Apache License 2.0. This is what comes with it."
        return Part(program, elf.data, elf, libraries, bill, crates.notices(title, rows).encode())

    def base(self, part: Part) -> list[Entry]:
        """What is below a program: the same in all images of programs with the same libraries."""
        passwd = f"root:x:0:0:root:/:/sbin/nologin\nkoord:x:{USER}:{USER}:koord:/:/sbin/nologin\n"
        group = f"root:x:0:\nkoord:x:{USER}:\n"
        entries = [
            oci.directory("tmp", 0o1777),
            Entry("etc/passwd", passwd.encode()),
            Entry("etc/group", group.encode()),
            Entry("etc/nsswitch.conf", b"hosts: files dns\n"),
            Entry("etc/ssl/certs/ca-certificates.crt", self.certificates),
        ]
        return entries + [Entry(name, path.read_bytes(), 0o755) for name, path in part.libraries.items()]

    def top(self, part: Part) -> list[Entry]:
        name = part.program.name
        entries = [
            Entry(name, part.data, 0o755),
            Entry(f"{DOC}/LICENSE", self.apache.encode()),
            Entry(f"{DOC}/THIRD-PARTY-LICENSES.txt", part.notices),
            Entry(f"{DOC}/{name}.cdx.json", part.bill),
        ]
        return entries + (system.zones() if part.program.zones else [])

    def labels(self, program: Program) -> dict:
        names = {
            "title": program.name,
            "description": program.title,
            "version": self.version,
            "created": oci.rfc3339(self.time),
            "licenses": "Apache-2.0",
            "vendor": "koord",
        } | ({"revision": self.revision} if self.revision else {})
        return {f"org.opencontainers.image.{key}": value for key, value in names.items()}

    def config(self, program: Program) -> dict:
        return {
            "User": program.user,
            "Env": ["PATH=/"],
            "Entrypoint": [f"/{program.name}"],
            "WorkingDir": "/",
            "Labels": self.labels(program),
        }

    def name(self, program: Program) -> str:
        return f"{self.options.repository}/{program.name}:{self.options.tag or self.version}"

    def tarball(self, parts, architecture: str) -> tuple[str, bytes]:
        """Returns the name and the content of the archive for machines without containers."""
        top = f"koord-{self.version}-linux-{architecture}"
        files = {f"bin/{p.program.name}": (p.data, 0o755) for p in parts}
        for p in parts:
            files[f"licenses/{p.program.name}.txt"] = p.notices, 0o644
            files[f"sbom/{p.program.name}.cdx.json"] = p.bill, 0o644
        files["LICENSE"] = self.apache.encode(), 0o644
        files["README.md"] = (UNITS / "README.md").read_bytes(), 0o644
        names = {p.program.name for p in parts}
        for place in (UNITS, ROOT / "deploy/runtime-proxy"):
            for unit in sorted([*place.glob("*.service"), *place.glob("*.socket")]):
                if unit.stem in names:
                    files[f"systemd/{unit.name}"] = unit.read_bytes(), 0o644
        sums = "".join(f"{oci.digest(data)}  {name}\n" for name, (data, _) in sorted(files.items()))
        files["SHA256SUMS"] = sums.encode(), 0o644
        entries = [Entry(f"{top}/{name}", data, mode) for name, (data, mode) in files.items()]
        return f"{top}.tar.gz", oci.compress(oci.tar(entries, self.time))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def build(options: Options, report=print) -> None:
    """Writes what the options ask for, and reports each file."""
    builder = Builder(options)
    wanted = builder.wanted()
    directories = options.programs or compile_programs(wanted, options.target)
    options.out.mkdir(parents=True, exist_ok=True)
    if any(p.zones for p in wanted) and not system.zones():
        report("no /usr/share/zoneinfo: koord refuses time zones of CronJobs in its image", file=sys.stderr)
    written, parts, large = {}, [], []

    def write(name: str, data: bytes):
        temporary = options.out / f".{name}.part"
        temporary.write_bytes(data)
        temporary.rename(options.out / name)
        written[name] = oci.digest(data)

    for program in wanted:
        part = builder.part(program, directories)
        parts.append(part)
        if not program.image:
            continue
        if options.trees:
            oci.write_tree(builder.base(part) + builder.top(part), builder.time, options.out / program.name)
            continue
        archive = oci.image(
            builder.name(program),
            [(builder.base(part), "libraries and certificates"), (builder.top(part), program.name)],
            builder.config(program),
            part.elf.architecture,
            builder.time,
        )
        write(f"{program.name}.tar", archive)
        write(f"{program.name}.cdx.json", part.bill)
        linked = ", ".join(Path(name).name for name in part.libraries) or "static"
        report(f"{program.name}.tar  {_mib(len(archive))}  {builder.name(program)}  user {program.user}  ({linked})")
        if len(archive) > options.limit * (1 << 20):
            large.append(f"{program.name}.tar has {_mib(len(archive))}; the limit is {options.limit:g} MiB")
    if options.tarball:
        architectures = {part.elf.architecture for part in parts}
        if len(architectures) != 1:
            raise Failed(f"programs are for {', '.join(sorted(architectures))}")
        name, archive = builder.tarball(parts, architectures.pop())
        write(name, archive)
        glibc = max((part.elf.glibc for part in parts if part.elf.glibc), default=None)
        report(f"{name}  {_mib(len(archive))}" + (f"  needs glibc {'.'.join(map(str, glibc))}" if glibc else ""))
    if written:
        write("SHA256SUMS", "".join(f"{content}  {name}\n" for name, content in sorted(written.items())).encode())
    if large:
        raise Failed("\n".join(large))
