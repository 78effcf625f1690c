"""What images take from the build machine: the C library, certificates and time zones."""

import os
import re
from pathlib import Path
from urllib.parse import quote

from elf import Elf
from oci import Entry

MULTIARCH = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


class Missing(Exception):
    """The build machine lacks something."""


def directories(architecture: str):
    """Where loaders search without being told to."""
    triple = MULTIARCH[architecture]
    return [f"lib/{triple}", f"usr/lib/{triple}", "lib64", "usr/lib64", "lib", "usr/lib"]


def libraries(program: Elf, opens, sysroot: Path):
    """Returns the path in the image and the file of the loader and of each library that the program needs.

    `opens` are names of further libraries.
    """
    if program.interpreter is None:
        return {}
    if program.search:
        raise Missing(f"{program.name} has a search path of its own: {program.search}")
    loader = program.interpreter.lstrip("/")
    found = {loader: sysroot / loader}
    if not found[loader].exists():
        raise Missing(f"there is no {found[loader]}, the loader of {program.name}")
    places = {os.path.basename(loader)}
    queue = program.needed + list(opens)
    while queue:
        name = queue.pop(0)
        if name in places:
            continue
        places.add(name)
        for place in directories(program.architecture):
            path = sysroot / place / name
            if not path.exists():
                continue
            library = Elf(path.read_bytes(), str(path))
            if library.architecture == program.architecture:
                break
        else:
            raise Missing(f"{program.name} needs {name}, which is not below {sysroot}")
        found[f"{place}/{name}"] = path
        queue += library.needed
        # Before 2.34 the parts of the library that resolve names were files of their own.
        if name == "libc.so.6" and b"_nss_dns_gethostbyname4_r" not in library.data:
            queue += ["libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"]
    return dict(sorted(found.items()))


def certificates(given: Path | None) -> tuple[bytes, list[Path]]:
    """Returns the certificates of public authorities, and the files that they are from.

    Authorities that an administrator added to the build machine are left out: a distribution's package keeps its own
    apart.
    """
    mozilla = Path("/usr/share/ca-certificates/mozilla")
    if given:
        files = [given]
    elif mozilla.is_dir():
        files = sorted(mozilla.glob("*.crt"))
    else:
        files = []
    if not files:
        raise Missing("there is no /usr/share/ca-certificates/mozilla: name a file of authorities with --ca-certificates")
    texts = [f.read_text().strip() for f in files]
    if not all("-----BEGIN CERTIFICATE-----" in text for text in texts):
        raise Missing("a file of authorities has no certificate in it")
    return ("\n".join(texts) + "\n").encode(), files


def zones(root: Path = Path("/usr/share/zoneinfo")) -> list[Entry]:
    """Returns the time zones of the machine, none if it has none."""
    found = []
    for directory, below, names in os.walk(root):
        at = Path(directory)
        if at == root:
            # The same zones with and without leap seconds.
            below[:] = [name for name in below if name not in ("posix", "right")]
            names = [name for name in names if name not in ("localtime", "posixrules")]
        for name in names:
            data = (at / name).read_bytes()
            if data[:4] == b"TZif":
                found.append(Entry(f"usr/share/zoneinfo/{(at / name).relative_to(root)}", data))
    return found


class Packages:
    """The packages of a machine of the Debian family; none on another one."""

    def __init__(self, root: Path = Path("/")):
        self.root, self.owners, self.versions = root, {}, {}
        self.distribution = None
        try:
            release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "etc/os-release").read_text(), re.M))
            self.distribution = release.get("ID"), release.get("VERSION_ID")
            status = (root / "var/lib/dpkg/status").read_text(errors="replace")
        except OSError:
            return
        for paragraph in status.split("\n\n"):
            fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.M))
            if "Package" in fields:
                self.versions[fields["Package"]] = fields.get("Version", ""), fields.get("Architecture", "")
        for listed in sorted((root / "var/lib/dpkg/info").glob("*.list")):
            for line in listed.read_text(errors="replace").splitlines():
                self.owners.setdefault(line, listed.stem.split(":")[0])

    def owner(self, path: Path):
        """Returns the name of the package that a file is of, or None."""
        for candidate in (str(path), os.path.realpath(path)):
            other = candidate[4:] if candidate.startswith("/usr/") else f"/usr{candidate}"
            for form in (candidate, other):
                if form in self.owners:
                    return self.owners[form]
        return None

    def url(self, package: str) -> str:
        version, architecture = self.versions[package]
        name, release = self.distribution
        return (
            f"pkg:deb/{name}/{quote(package, safe='')}@{quote(version, safe='')}"
            f"?arch={architecture}&distro={name}-{release}"
        )

    def copyright(self, package: str) -> str:
        path = self.root / "usr/share/doc" / package / "copyright"
        try:
            return path.read_text(errors="replace")
        except OSError as e:
            raise Missing(f"package {package} has no license text: {e}") from e
