"""OCI image archives of programs that are not koord's."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

TYPE = "application/vnd.oci.image."


def files(program, tools):
    """Returns the files of an image: the program at its root, tools in /bin, and libraries where the loader looks for them."""
    found = {program.name: program} | {f"bin/{tool.name}": tool for tool in tools}
    for file in (program, *tools):
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(/\S+) \(0x", listed):
            found[path.lstrip("/")] = Path(os.path.realpath(path))
    return found


def archive(entries):
    """Returns a tar archive with entries of name and bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write(out, name, program, tools=()):
    """Writes the archive `out` of an image with this name that holds a program, tools that it runs, and libraries."""
    def digest(data):
        return "sha256:" + hashlib.sha256(data).hexdigest()

    def described(kind, data):
        return {"mediaType": f"{TYPE}{kind}", "digest": digest(data), "size": len(data)}

    layer = archive((path, source.read_bytes()) for path, source in files(program, tools).items())
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}}).encode()
    manifest = json.dumps({"schemaVersion": 2, "mediaType": f"{TYPE}manifest.v1+json", "config": described("config.v1+json", config),
                           "layers": [described("layer.v1.tar", layer)]}).encode()
    index = {"schemaVersion": 2, "manifests": [described("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}]}
    blobs = [(f"blobs/sha256/{hashlib.sha256(data).hexdigest()}", data) for data in (layer, config, manifest)]
    out.write_bytes(archive([("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", json.dumps(index).encode()), *blobs]))
