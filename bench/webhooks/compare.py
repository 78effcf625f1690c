"""The meaning of an answer, and the differences between two."""
import base64
import copy
import fnmatch
import json
from decimal import Decimal

UNIT = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15",
        "E": "1e18", **{f"{letter}i": 1024 ** power for power, letter in enumerate("KMGTPE", 1)}}
# Below these keys are amounts.
LISTS = {"requests", "limits", "overhead", "min", "max", "allocatable", "capacity", "used"}


def amount(text):
    """A quantity as a number; other values stay unchanged."""
    digits = str(text).rstrip("numkKMGTPEi")
    try:
        return str((Decimal(digits) * Decimal(UNIT[str(text)[len(digits):]])).normalize() + 0)
    except (ArithmeticError, KeyError):
        return text


def meaning(value, key=""):
    """Normalizes a tree so that equivalent values are equal: amounts by value, JSON in annotations by
    content; null and empty values that Go writes are left out."""
    if isinstance(value, dict):
        if key in LISTS:
            return {name: amount(text) for name, text in value.items()}
        if key == "annotations":
            return {name: annotation(text) for name, text in value.items()}
        tree = {name: meaning(item, name) for name, item in value.items()}
        return {name: item for name, item in tree.items() if item is not None and item != "" and (item != {} or name not in
                ("status", "resources", "metadata", "annotations", "labels", "limits", "requests", "max", "min", "spec"))}
    if isinstance(value, list):
        return [meaning(item) for item in value]
    return value


def annotation(text):
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return text
    if isinstance(found, dict) and all(isinstance(v, (str, int)) for v in found.values()):
        return {name: amount(item) for name, item in found.items()}
    return meaning(found) if isinstance(found, (dict, list)) else text


def steps(pointer):
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def patched(thing, operations):
    """RFC 6902, of which webhooks answer add, remove and replace."""
    root = {"": copy.deepcopy(thing)}
    for operation in operations:
        path = [""] + steps(operation["path"])
        at = root
        for step in path[:-1]:
            at = at[int(step)] if isinstance(at, list) else at[step]
        last, what = path[-1], operation["op"]
        if isinstance(at, list):
            index = len(at) if last == "-" else int(last)
            if what == "add":
                at.insert(index, operation["value"])
            elif what == "replace":
                at[index] = operation["value"]
            else:
                del at[index]
        elif what in ("add", "replace"):
            if what == "replace" and last not in at:
                raise KeyError(operation["path"])
            at[last] = operation["value"]
        elif what == "remove":
            del at[last]
        else:
            raise KeyError(what)
    return root[""]


class Outcome:
    """One server's answer to a review."""

    def __init__(self, status):
        self.status, self.allowed, self.code, self.message, self.thing, self.patch = status, None, None, "", None, []
        self.version = self.uid = None

    @classmethod
    def of(cls, case, status, body):
        outcome = cls(status)
        try:
            review = json.loads(body)
            response = review["response"]
            outcome.version = review.get("apiVersion")
        except (ValueError, KeyError, TypeError):
            outcome.message = body.decode(errors="replace")[:300]
            return outcome
        outcome.allowed, outcome.uid = response.get("allowed", False), response.get("uid", "")
        said = response.get("status") or {}
        outcome.code = said.get("code", 200 if outcome.allowed else 403)
        # A reason of one that is a message of the other is text.
        outcome.message = said.get("message") or said.get("reason") or ""
        if response.get("warnings"):
            outcome.message += f" (warns: {response['warnings']})"
        if response.get("patch"):
            outcome.patch = json.loads(base64.b64decode(response["patch"]))
        if outcome.allowed and isinstance(case.body, dict):
            thing = case.body["request"].get("object")
            try:
                outcome.thing = meaning(patched(thing, outcome.patch))
            except (KeyError, IndexError, ValueError, TypeError) as problem:
                outcome.thing = f"its patch does not apply: {problem!r}"
        return outcome

    def word(self):
        if self.status != 200 or self.code == 500:
            return "failed"
        return "denied" if not self.allowed else "patched" if self.patch else "allowed"

    def shown(self):
        return {"status": self.status, "allowed": self.allowed, "code": self.code, "message": self.message, "patch": self.patch}


def walk(ours, theirs, at=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(set(ours) | set(theirs)):
            if key not in ours or key not in theirs:
                yield f"{at}/{key}: ours {text(ours, key)}, theirs {text(theirs, key)}"
            else:
                yield from walk(ours[key], theirs[key], f"{at}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            yield from walk(a, b, f"{at}/{i}")
    elif ours != theirs:
        yield f"{at}: ours {json.dumps(ours)}, theirs {json.dumps(theirs)}"


def text(tree, key):
    return json.dumps(tree[key]) if key in tree else "has none"


def differences(ours, theirs):
    found = []
    for name in ("status", "allowed", "code", "version", "uid"):
        a, b = getattr(ours, name), getattr(theirs, name)
        # An answer to an invalid review has neither.
        if a != b and (name not in ("version", "uid") or ours.uid):
            found.append(f"{name}: ours {a}, theirs {b}")
    if ours.allowed and theirs.allowed:
        found += walk(ours.thing, theirs.thing)
    return found


class Known:
    """The list of expected differences: lines `GATES CASE FIELDS | start of the row in docs/compat.md`, each of
    the three a list of patterns with commas."""

    def __init__(self, known, compat):
        rows = [line.strip("| \n").replace("`", "") for line in open(compat) if line.startswith("|")]
        self.lines = []
        for number, line in enumerate(open(known), 1):
            if line.startswith("#") or not line.strip():
                continue
            patterns, _, row = line.partition("|")
            gates, case, fields = (part.split(",") for part in patterns.split())
            row = row.strip()
            if not any(found.startswith(row.replace("`", "")) for found in rows):
                raise SystemExit(f"{known}:{number}: docs/compat.md has no row {row!r}")
            self.lines.append((gates, case, fields, row))

    def row(self, gates, case, found):
        """Returns the row that covers all of these differences, or None."""
        fields = [line.partition(":")[0] for line in found]
        for a, b, c, row in self.lines:
            if match(gates, a) and match(case.name, b) and all(match(field, c) for field in fields):
                return row
        return None


def match(text, patterns):
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)
