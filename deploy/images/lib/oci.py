"""Archives with the same bytes for the same content: tar, gzip and the layout of OCI images."""

import functools
import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class Entry:
    """A file, or a directory if it has no data. Paths are relative to the root."""

    path: str
    data: bytes | None = None
    mode: int = 0o644


def directory(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, None, mode)


def with_parents(entries):
    """Returns the entries and all directories above them, sorted by path."""
    found = {}
    for entry in entries:
        if entry.path in found:
            raise ValueError(f"two entries for {entry.path}")
        found[entry.path] = entry
    for path in list(found):
        for parent in list(Path(path).parents)[:-1]:
            found.setdefault(str(parent), directory(str(parent)))
    return [found[path] for path in sorted(found)]


def tar(entries, time: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in with_parents(entries):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.mtime = entry.mode, time
            if entry.data is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(entry.data)
                archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


# Programs with the same libraries have the same layer below.
@functools.lru_cache(maxsize=2)
def compress(data: bytes) -> bytes:
    out = io.BytesIO()
    # Level 9 makes koord 1 % smaller and takes twice the time.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0) as archive:
        archive.write(data)
    return out.getvalue()


def write_tree(entries, time: int, root: Path):
    """Writes the entries below a new directory."""
    root.mkdir(parents=True)
    entries = with_parents(entries)
    for entry in entries:
        path = root / entry.path
        if entry.data is None:
            path.mkdir()
        else:
            path.write_bytes(entry.data)
    for entry in reversed(entries):
        path = root / entry.path
        path.chmod(entry.mode)
        os.utime(path, (time, time))
    os.utime(root, (time, time))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def dump(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def rfc3339(time: int) -> str:
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def image(name: str, layers, config, architecture: str, time: int) -> bytes:
    """Returns the archive of an image: an OCI layout that older versions of docker can load as well.

    `name` is a full reference with a tag, `layers` are pairs of entries and a text for the history, `config` is what a
    container is started with.
    """
    blobs = {}

    def blob(kind: str, data: bytes):
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": f"sha256:{digest(data)}", "size": len(data)}

    described, differences, history = [], [], []
    for entries, text in layers:
        plain = tar(entries, time)
        differences.append(f"sha256:{digest(plain)}")
        described.append(blob(LAYER, compress(plain)))
        history.append({"created": rfc3339(time), "created_by": text})
    platform = {"architecture": architecture, "os": "linux"} | ({"variant": "v8"} if architecture == "arm64" else {})
    settings = platform | {
        "created": rfc3339(time),
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": differences},
        "history": history,
    }
    configured = blob(CONFIG, dump(settings))
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": configured, "layers": described}
    manifested = blob(MANIFEST, dump(manifest))
    manifested["platform"] = platform
    # containerd reads the first, podman and others the second, which is the tag only.
    manifested["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
    }
    path = "blobs/sha256/{}".format
    older = {
        "Config": path(configured["digest"][7:]),
        "RepoTags": [name],
        "Layers": [path(layer["digest"][7:]) for layer in described],
    }
    return tar(
        [Entry(path(key), data) for key, data in blobs.items()]
        + [
            Entry("index.json", dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifested]})),
            Entry("manifest.json", dump([older])),
            Entry("oci-layout", dump({"imageLayoutVersion": "1.0.0"})),
        ],
        time,
    )
