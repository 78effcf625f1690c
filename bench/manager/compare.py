"""Snapshots of the objects that managers write, and the differences between two of them."""
import fnmatch
import json
from decimal import Decimal

WATCHED = ["Node", "NodeSLO", "NodeMetric", "NodeResourceTopology", "Device", "ElasticQuota", "Pod"]

SUFFIX = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal("1e3")}
for power, letter in enumerate("KMGTPE", 1):
    SUFFIX[letter + "i"] = Decimal(1024) ** power
    if letter != "K":
        SUFFIX[letter] = Decimal(1000) ** power


def amount(text):
    """A Kubernetes quantity as a number; other values stay unchanged."""
    if isinstance(text, int):
        return Decimal(text)
    try:
        digits = text.rstrip("numkKMGTPEi")
        return Decimal(digits) * SUFFIX[text[len(digits):]]
    except (ArithmeticError, KeyError, AttributeError):
        try:
            return Decimal(text)
        except (ArithmeticError, TypeError, ValueError):
            return text


def amounts(resources):
    return {name: amount(text) for name, text in (resources or {}).items()}


def parsed(value):
    """Decodes JSON texts in annotations."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, (dict, list)) else value


def resource_text(thing):
    """Amounts below `resources` compare by value."""
    if isinstance(thing, dict):
        return {key: amounts(value) if key in ("resources", "min", "max") and isinstance(value, dict)
                and all(isinstance(v, (str, int)) for v in value.values())
                else resource_text(value) for key, value in thing.items()}
    return [resource_text(item) for item in thing] if isinstance(thing, list) else thing


def annotation(key, value):
    if key == "node.koordinator.sh/network-bandwidth":
        return amount(value)
    found = parsed(value)
    if isinstance(found, dict) and all(isinstance(v, (str, int)) for v in found.values()):
        return amounts(found)
    return resource_text(found)


def meaning(thing):
    """Returns the compared fields of an object, as a tree."""
    meta, kind = thing["metadata"], thing["kind"]
    labels = meta.get("labels") or {}
    annotations = {key: annotation(key, value) for key, value in (meta.get("annotations") or {}).items()}
    kept = {"labels": labels, "annotations": annotations}
    spec = thing.get("spec")
    if kind == "Node":
        status = thing.get("status") or {}
        kept.update(capacity=amounts(status.get("capacity")), allocatable=amounts(status.get("allocatable")))
    elif kind == "NodeResourceTopology":
        kept["zones"] = {zone["name"]: {resource["name"]: {k: amount(v) for k, v in resource.items() if k != "name"}
                                        for resource in zone.get("resources") or []}
                         for zone in thing.get("zones") or []}
    elif kind == "NodeSLO":
        system = (spec or {}).get("systemStrategy")
        if isinstance(system, dict) and "totalNetworkBandwidth" in system:
            system["totalNetworkBandwidth"] = amount(system["totalNetworkBandwidth"])
        kept["spec"] = spec
    elif kind == "Pod":
        spec = dict(spec)
        kept["spec"] = resource_text(spec)
    else:
        kept["spec"] = resource_text(spec)
    return kept


def snapshot(api):
    """Every watched object by `Kind/namespace/name`, with its version."""
    found = {}
    for kind in WATCHED:
        for thing in api.list(kind):
            thing["kind"] = kind
            meta = thing["metadata"]
            key = "/".join(filter(None, [kind, meta.get("namespace"), meta["name"]]))
            found[key] = {"version": meta["resourceVersion"], "thing": thing}
    return found


def differences(ours, theirs, path=""):
    """Yields leaves that differ: path, ours, theirs. Absent values are None."""
    trees = all(side is None or isinstance(side, dict) for side in (ours, theirs))
    if trees and (ours or theirs):
        for key in sorted(set(ours or ()) | set(theirs or ())):
            yield from differences((ours or {}).get(key), (theirs or {}).get(key), f"{path}.{key}" if path else key)
        return
    if ours != theirs:
        yield path, ours, theirs


def compare(ours, theirs):
    """Differences between two snapshots: object, field, ours, theirs."""
    for key in sorted(set(ours) | set(theirs)):
        if key not in ours or key not in theirs:
            yield key, "(object)", "there" if key in ours else None, "there" if key in theirs else None
            continue
        for field, a, b in differences(meaning(ours[key]["thing"]), meaning(theirs[key]["thing"])):
            yield key, field, a, b


class Known:
    """The list of expected differences: lines of `STEP OBJECT FIELD [OURS:THEIRS] | part of a row of docs/compat.md`. In place of
    values there may be `=NAME`, one of `checks`, functions of both sides."""

    def __init__(self, path, compat, checks=None):
        self.checks = checks or {}
        # The matches of each line: by its number, texts and counts.
        self.rules, self.used = [], {}
        rows = " ".join(compat.split())
        for number, line in enumerate(open(path), 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            pattern, _, row = line.partition(" | ")
            step, thing, field, *values = pattern.split()
            if row.strip() not in rows:
                raise SystemExit(f"{path}:{number}: docs/compat.md has no row {row.strip()!r}")
            if values and values[0].startswith("=") and values[0][1:] not in self.checks:
                raise SystemExit(f"{path}:{number}: there is no check {values[0][1:]!r}")
            self.rules.append((step.split(","), thing.split(","), field, "".join(values) or "*", row.strip(), number))

    def row(self, step, thing, field, values, sides=()):
        """Returns the row of the first line that matches; `values` is `OURS:THEIRS` as shown, `sides` are both values."""
        def any_of(text, patterns):
            return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)

        def meant(wanted):
            return self.checks[wanted[1:]](*sides) if wanted.startswith("=") else any_of(values, [wanted])

        for steps, things, fields, wanted, row, number in self.rules:
            if any_of(step, steps) and any_of(thing, things) and any_of(field, [fields]) and meant(wanted):
                uses = self.used.setdefault(number, {})
                use = f"{step} {thing} {field} {values}"
                uses[use] = uses.get(use, 0) + 1
                return row
        return None


def shown(value):
    text = json.dumps(value, default=str, sort_keys=True)
    return text if len(text) < 200 else text[:200] + "..."
