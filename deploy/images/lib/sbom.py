"""The bill of materials of a program, in CycloneDX JSON."""

import json
import uuid
from urllib.parse import quote

from oci import digest, rfc3339

SPECIFICATION = "1.5"


def url(crate) -> str:
    """Returns the purl of a crate. Those of the workspace are in no registry."""
    text = f"pkg:cargo/{crate.name}@{quote(crate.version, safe='')}"
    return text if crate.checksum else f"{text}?download_url=file://{crate.directory.as_posix()}"


def _crate(crate) -> dict:
    component = {
        "type": "library",
        "bom-ref": url(crate),
        "name": crate.name,
        "version": crate.version,
        "purl": url(crate),
        "scope": "required",
    }
    if crate.license:
        component["licenses"] = [{"expression": crate.license}]
    if crate.checksum:
        component["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    if crate.description:
        component["description"] = crate.description
    if crate.repository:
        component["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
    return component


def document(program, version: str, data: bytes, root, edges, crates, others, revision: str, time: int) -> bytes:
    """Returns the bill of materials of a program.

    `edges` are the dependencies of each crate, from `root`; `crates` has all crates by name and version; `others` are
    components that are no crates. Order and serial number follow from the content.
    """
    main = {
        "type": "application",
        "bom-ref": f"program:{program.name}",
        "name": program.name,
        "version": version,
        "description": program.title,
        "licenses": [{"expression": "Apache-2.0"}],
        "hashes": [{"alg": "SHA-256", "content": digest(data)}],
    }
    if revision:
        main["properties"] = [{"name": "koord:revision", "value": revision}]
    components = [_crate(crates[key]) for key in edges] + others
    dependencies = [{"ref": url(crates[key]), "dependsOn": [url(crates[k]) for k in below]} for key, below in edges.items()]
    reached = {key for below in edges.values() for key in below} | {root}
    first = [url(crates[root])] + [url(crates[key]) for key in edges if key not in reached]
    dependencies.append({"ref": main["bom-ref"], "dependsOn": sorted(first + [c["bom-ref"] for c in others])})
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(time),
            "lifecycles": [{"phase": "build"}],
            "component": main,
        },
        "components": sorted(components, key=lambda c: c["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda d: d["ref"]),
    }
    for dependency in content["dependencies"]:
        dependency["dependsOn"].sort()
    name = digest(json.dumps(content, sort_keys=True).encode())
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
    return (json.dumps(content, sort_keys=True, indent=1) + "\n").encode()
