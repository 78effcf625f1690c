"""Checks what is in an image's archive, without running it."""

import gzip
import io
import json
import tarfile
from datetime import datetime
from pathlib import Path

import oci
from elf import Elf
from programs import PROGRAMS, USER
from system import directories

WRITABLE_BY_ALL = {"tmp"}


class Archive:
    """The content of an archive, with the files of all layers."""

    def __init__(self, path: Path):
        self.path, self.problems = path, []
        self.program = next((p for p in PROGRAMS if p.image and p.name == path.stem), None)
        if self.program is None:
            self.problems.append("it is called like no program")
            return
        try:
            self._read()
        except (KeyError, IndexError, StopIteration, ValueError, tarfile.TarError, OSError, EOFError) as e:
            self.problems.append(f"cannot be read: {type(e).__name__} {e}")
            return
        self._check_config()
        self._check_files()
        self._check_program()
        self._check_papers()

    def _expect(self, good: bool, problem: str):
        if not good:
            self.problems.append(problem)

    def _blob(self, described) -> bytes:
        data = self.blobs[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
        self._expect(oci.digest(data) == described["digest"][7:], f"{described['digest']} has other content")
        self._expect(len(data) == described["size"], f"{described['digest']} has another size")
        return data

    def _read(self):
        with tarfile.open(self.path) as archive:
            self.blobs = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
        self._expect(json.loads(self.blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}, "oci-layout differs")
        index = json.loads(self.blobs["index.json"])
        described = index["manifests"][0]
        self._expect(index["mediaType"] == oci.INDEX and len(index["manifests"]) == 1, "index.json differs")
        self.name = described["annotations"]["io.containerd.image.name"]
        self.digest = described["digest"]
        manifest = json.loads(self._blob(described))
        self.config = json.loads(self._blob(manifest["config"]))
        self.created = int(datetime.fromisoformat(self.config["created"].replace("Z", "+00:00")).timestamp())
        differences = self.config["rootfs"]["diff_ids"]
        self._expect(len(differences) == len(manifest["layers"]), "the config has another number of layers")
        self.files, self.modes = {}, {}
        for layer, difference in zip(manifest["layers"], differences, strict=False):
            plain = gzip.decompress(self._blob(layer))
            self._expect(f"sha256:{oci.digest(plain)}" == difference, f"layer {layer['digest']} has another diff_id")
            with tarfile.open(fileobj=io.BytesIO(plain)) as content:
                members = content.getmembers()
                self._expect([m.name for m in members] == sorted(m.name for m in members), "entries are not sorted")
                for m in members:
                    self._member(m)
                    if m.isfile():
                        self.files[m.name] = content.extractfile(m).read()

    def _member(self, m):
        self.modes[m.name] = m.mode
        self._expect(m.isfile() or m.isdir(), f"/{m.name} is neither a file nor a directory")
        self._expect(not m.mode & 0o6000, f"/{m.name} is setuid or setgid")
        self._expect(not m.mode & 0o022 or m.name in WRITABLE_BY_ALL, f"/{m.name} may be written by others than root")
        self._expect((m.uid, m.gid, m.uname, m.gname) == (0, 0, "", ""), f"/{m.name} is not root's")
        self._expect(m.mtime == self.created, f"/{m.name} has another time than the image")

    def _check_config(self):
        config, name = self.config["config"], self.program.name
        self._expect(config.get("User") == self.program.user, f"its user is {config.get('User')!r}")
        self._expect(config.get("Entrypoint") == [f"/{name}"], f"its entry point is {config.get('Entrypoint')}")
        labels = config.get("Labels", {})
        for label in ("title", "description", "version", "created", "licenses"):
            self._expect(labels.get(f"org.opencontainers.image.{label}"), f"it has no label {label}")
        self._expect(self.config["os"] == "linux", f"it is for {self.config['os']}")

    def _check_files(self):
        passwd = self.files.get("etc/passwd", b"").decode()
        self._expect(f":x:{USER}:{USER}:" in passwd, "/etc/passwd lacks the user")
        roots = self.files.get("etc/ssl/certs/ca-certificates.crt", b"")
        self._expect(b"-----BEGIN CERTIFICATE-----" in roots, "it has no certificates of authorities")

    def _check_program(self):
        name = self.program.name
        data = self.files.get(name)
        if data is None:
            self.problems.append(f"there is no /{name}")
            return
        self._expect(self.modes[name] == 0o755, f"/{name} cannot be executed by all")
        try:
            elf = Elf(data, f"/{name}")
        except ValueError as e:
            self.problems.append(str(e))
            return
        self._expect(elf.architecture == self.config["architecture"], f"/{name} is for {elf.architecture}")
        self._expect(elf.strip() == data or len(elf.strip()) == len(data), f"/{name} has symbols")
        if elf.interpreter is None:
            return
        loader = elf.interpreter.lstrip("/")
        self._expect(loader in self.files, f"there is no loader /{loader}")
        queue, known = [*elf.needed, *self.program.opens], {Path(loader).name}
        while queue:
            library = queue.pop()
            if library in known:
                continue
            known.add(library)
            found = [f"{d}/{library}" for d in directories(elf.architecture) if f"{d}/{library}" in self.files]
            self._expect(found, f"there is no library {library}")
            queue += Elf(self.files[found[0]], library).needed if found else []

    def _check_papers(self):
        name, below = self.program.name, "usr/share/doc/koord"
        bill_path = self.path.with_suffix(".cdx.json")
        bill = self.files.get(f"{below}/{name}.cdx.json", b"")
        self._expect(bill_path.exists() and bill_path.read_bytes() == bill, f"{bill_path.name} is not that of the image")
        try:
            bill = json.loads(bill)
        except ValueError:
            self.problems.append("its bill of materials is no JSON")
            return
        main = bill["metadata"]["component"]
        hashes = [h["content"] for h in main["hashes"]]
        self._expect(hashes == [oci.digest(self.files.get(name, b""))], "its bill of materials is of another program")
        references = {c["bom-ref"] for c in bill["components"]} | {main["bom-ref"]}
        for dependency in bill["dependencies"]:
            lost = {dependency["ref"], *dependency["dependsOn"]} - references
            self._expect(not lost, f"its bill of materials does not describe {sorted(lost)}")
        self._expect(f"{below}/LICENSE" in self.files, "it has no LICENSE")
        notices = self.files.get(f"{below}/THIRD-PARTY-LICENSES.txt", b"").decode().splitlines()
        for component in bill["components"]:
            local = "download_url=file:" in component.get("purl", "")
            row = f"{component['name']} {component.get('version', '')}:"
            if not local and "purl" in component:
                self._expect(any(line.startswith(row) for line in notices), f"the license of {row[:-1]} is missing")
                self._expect("hashes" in component or "pkg:cargo" not in component["purl"], f"{row[:-1]} has no hash")
