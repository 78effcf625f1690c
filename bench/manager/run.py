#!/usr/bin/env python3
"""Parts of bench/compare-manager: URL is that of a `kubectl proxy`.

run.py populate URL two|everything      creates the population
run.py step URL NAME                    does what the step says, and every node reports again
run.py settle URL FILE                  waits until nothing changes, writes a snapshot
run.py compare STEP OURS THEIRS KNOWN COMPAT COUNTS
run.py writes BEFORE AFTER              what was written from one snapshot to the next
run.py steps                            names of the steps
run.py end KNOWN COMPAT COUNTS          what was compared, in all
"""
import json
import sys
import time

import population
from api import Api, Refused
from compare import Known, compare, differences, meaning, shown, snapshot
from steps import STEPS, data

NAMESPACE, NAME = "koordinator-system", "slo-controller-config"
DEFAULT_SPEC = {"metricCollectPolicy": {
    "aggregateDurationSeconds": 300, "reportIntervalSeconds": 60, "nodeMemoryCollectPolicy": "usageWithoutPageCache",
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]}}}


def world_of(size):
    return population.two() if size == "two" else population.everything()


def report(status, age):
    return status if age is None else {**status, "updateTime": population.ago(age)}


def populate(api, size):
    world = world_of(size)
    api.each(world.nodes.values(), api.create)
    refused = []

    def add(thing):
        try:
            api.create(thing)
        except Refused as error:
            if error.status != 422:
                raise
            refused.append(f"{thing['kind']}/{thing['metadata']['name']}")
    api.each(world.others, add)
    api.each([{"kind": "NodeMetric", "metadata": {"name": name}, "spec": DEFAULT_SPEC, "status": report(status, age)}
              for name, (status, age) in world.metrics.items()], add)
    api.each(world.pods, add)
    print(f"{len(world.nodes)} nodes, {len(world.pods)} pods, {len(world.others)} other objects;"
          f" the API server refused {len(refused)}: {' '.join(sorted(refused))}")


def step(api, name, size):
    world = world_of(size)
    what = STEPS[name]
    config = what["config"]
    if config is None:
        api.delete("ConfigMap", NAME, NAMESPACE)
    else:
        thing = {"kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data(config)}
        try:
            api.create(thing)
        except Refused as error:
            if error.status != 409:
                raise
            old = api.call("GET", api.at(thing))
            gone = {key: None for key in old.get("data") or {} if key not in thing["data"]}
            api.patch("ConfigMap", NAME, {"data": {**gone, **thing["data"]}}, NAMESPACE)
    for change in what.get("changes", []):
        match change:
            case ["label", node, labels]:
                api.patch("Node", node, {"metadata": {"labels": labels}})
            case ["annotate", node, annotations]:
                api.patch("Node", node, {"metadata": {"annotations": annotations}})
            case ["status", node, status]:
                api.patch("Node", node, {"status": status}, sub="status")
            case ["delete", "Pod", pod]:
                api.delete("Pod", pod, "default")
            case ["delete", kind, thing]:
                api.delete(kind, thing)
            case ["sick", device]:
                found = api.call("GET", api.path("Device", device))
                api.patch("Device", device, {"spec": {"devices": [{**d, "health": False} for d in found["spec"]["devices"]]}})

    def again(item):
        node, (status, age) = item
        try:
            api.patch("NodeMetric", node, {"status": report(status, age)}, sub="status")
        except Refused as error:
            if error.status not in (404, 422):
                raise
    api.each(world.metrics.items(), again)


def settle(api, path):
    """Returns a snapshot after some seconds without a write."""
    def versions(found):
        return {key: thing["version"] for key, thing in found.items()}

    begun = quiet = time.monotonic()
    last = snapshot(api)
    while time.monotonic() - quiet < 8 and time.monotonic() - begun < 180:
        time.sleep(1)
        found = snapshot(api)
        if versions(found) != versions(last):
            quiet, last = time.monotonic(), found
    if time.monotonic() - begun >= 180:
        print("something is written again and again", file=sys.stderr)
    json.dump(last, open(path, "w"))


def compared(step, ours, theirs, known, compat, counts):
    ours, theirs = json.load(open(ours)), json.load(open(theirs))
    rules = Known(known, open(compat).read())
    listed = unlisted = 0
    found = list(compare(ours, theirs))
    # The same difference on many objects is one line.
    grouped = {}
    for thing, field, a, b in found:
        row = rules.row(step, thing, field, f"{shown(a)}:{shown(b)}")
        listed, unlisted = listed + bool(row), unlisted + (not row)
        grouped.setdefault((row or "", field, shown(a), shown(b)), []).append(thing)
    for (row, field, a, b), things in sorted(grouped.items()):
        print(f"{'known' if row else 'UNLISTED'} {step}: {field}: ours {a}, theirs {b}: {' '.join(things)}"
              + (f"\n    {row}" if row else ""))
    kinds = {}
    for key in set(ours) | set(theirs):
        kinds[key.split("/")[0]] = kinds.get(key.split("/")[0], 0) + 1
    print(f"step {step}: {len(set(ours) | set(theirs))} objects compared, {listed} known differences, {unlisted} unlisted", file=sys.stderr)
    with open(counts, "a") as file:
        file.write(json.dumps({"step": step, "objects": kinds, "known": listed, "unlisted": unlisted,
                               "used": list(rules.used)}) + "\n")
    return 1 if unlisted else 0


def writes(before, after):
    before, after = json.load(open(before)), json.load(open(after))
    written = same = 0
    for key in sorted(set(before) | set(after)):
        a, b = before.get(key), after.get(key)
        if a and b and a["version"] == b["version"]:
            continue
        written += 1
        if a and b:
            found = list(differences(meaning(b["thing"]), meaning(a["thing"])))
            same += not found
            for field, new, old in found or [("(means the same)", None, None)]:
                print(f"{key} {field}: {shown(old)} -> {shown(new)}")
        else:
            print(f"{key} {'deleted' if a else 'created'}")
    print(f"{written} objects written, {same} of them mean the same", file=sys.stderr)
    return 1 if same else 0


def end(known, compat, counts):
    rules = Known(known, open(compat).read())
    lines = [json.loads(line) for line in open(counts)]
    used = {number for line in lines for number in line["used"]}
    for rule in rules.rules:
        # A run of some steps does not reach all of them.
        if rule[-1] not in used and len(lines) == len(STEPS):
            print(f"nothing differed as {known}:{rule[-1]} says: {rule[-2]}")
    kinds = {}
    for line in lines:
        for kind, count in line["objects"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    print(json.dumps({"steps": len(lines), "objects": kinds, "known": sum(line["known"] for line in lines),
                      "unlisted": sum(line["unlisted"] for line in lines)}))


def main(argv):
    match argv:
        case ["populate", url, size]:
            populate(Api(url), size)
        case ["step", url, name, size]:
            step(Api(url), name, size)
        case ["settle", url, path]:
            settle(Api(url), path)
        case ["compare", *rest]:
            return compared(*rest)
        case ["writes", before, after]:
            return writes(before, after)
        case ["steps"]:
            print(*STEPS)
        case ["end", *rest]:
            end(*rest)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
