"""Parts of bench/compare-webhooks; each is a word of the command line."""
import collections
import json
import sys
import urllib.request

import compare
import corpus
import post
import population

COMMON = ["NodeMutatingWebhook", "NodeValidatingWebhook", "ConfigMapValidatingWebhook", "ReservationMutatingWebhook"]
# Every webhook is on in both. `open` has the gates that add something, `other` those that disable parts.
GATES = {
    "open": ["MultiQuotaTree", "EnableQuotaAdmission", "EnableQuotaAdmissionOnUpdate", "ValidatePodDeviceResource",
             "EnablePodEnhancedValidator", "BindingAdmissionWebhook", "ElasticQuotaGuaranteeUsage"],
    "other": ["ColocationProfileSkipMutatingResources", "ColocationProfileSkipValidatingPriority", "DisableDefaultQuota",
              "SupportParentQuotaSubmitPod", "DisableExtendedResourceSpec", "DisableDeviceResourceSpec",
              "ElasticQuotaEnableUpdateResourceKey", "EnableQuotaAdmission", "ElasticQuotaIgnorePodOverhead",
              "ElasticQuotaEvaluationTransformPod", "ReplaceResourcesTransformer"],
}


def say_population():
    json.dump({"apiVersion": "v1", "kind": "List", "items": list(population.everything())}, sys.stdout)


def say_gates(name):
    print(",".join(f"{gate}=true" for gate in COMMON + GATES[name]))


def say_pod(name, profile, qos=""):
    thing = corpus.pod({"profile": profile, **({corpus.QOS: qos} if qos else {})}, name=name)
    thing["spec"]["automountServiceAccountToken"] = False
    json.dump(thing, sys.stdout)


def ready(url):
    urllib.request.urlopen(url, timeout=5)


def post_all(gates, our_port, our_ca, their_port, their_ca, out, known, compat):
    """Posts every review to both and prints the differences; returns 1 if one is not listed."""
    ours, theirs = post.Server(int(our_port), our_ca), post.Server(int(their_port), their_ca)
    listed = compare.Known(known, compat)
    counts = collections.defaultdict(collections.Counter)
    differences = open(f"{out}/{gates}.differences", "w")
    answers = open(f"{out}/{gates}.answers", "w")
    unlisted = 0
    for case in corpus.cases(gates):
        both = [compare.Outcome.of(case, *server.post(case.path, case.body)) for server in (ours, theirs)]
        json.dump({"case": case.name, "path": case.path, "ours": both[0].shown(), "theirs": both[1].shown()}, answers)
        answers.write("\n")
        count = counts[case.path.partition("?")[0]]
        count["reviews"] += 1
        count[both[1].word()] += 1
        found = compare.differences(*both)
        if not found:
            continue
        row = listed.row(gates, case, found)
        count["meant" if row else "UNLISTED"] += 1
        unlisted += row is None
        text = [f"{'meant: ' + row if row else 'UNLISTED'}: {case.name} ({case.path})"]
        text += [f"  {line}" for line in found]
        text += [f"  ours said: {both[0].message}", f"  theirs said: {both[1].message}", ""]
        print("\n".join(text), file=differences)
        if row is None:
            print("\n".join(text), flush=True)
    columns = ["reviews", "allowed", "patched", "denied", "failed", "meant", "UNLISTED"]
    lines = ["| path | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for path, count in sorted(counts.items()):
        lines.append(f"| `{path}` | " + " | ".join(str(count[column]) for column in columns) + " |")
    total = sum(counts.values(), collections.Counter())
    lines.append("| all | " + " | ".join(str(total[column]) for column in columns) + " |")
    open(f"{out}/{gates}.counts", "w").write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 1 if unlisted else 0


if __name__ == "__main__":
    word, arguments = sys.argv[1], sys.argv[2:]
    do = {"population": say_population, "gates": say_gates, "pod": say_pod, "ready": ready, "post": post_all}[word]
    sys.exit(do(*arguments) or 0)
