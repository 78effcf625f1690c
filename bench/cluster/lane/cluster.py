"""Objects of the cluster and cgroup files of its pods."""

import json
import time
from pathlib import Path

from node import GROUP, GROUPS, NAME, Failed, eventually

NAMESPACE = "koordinator-system"
QOS_DIRECTORY = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}
# Files that koord sets, by controller.
FILES = ["cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_burst_us", "cpu/cpu.idle", "cpu/cpu.bvt_warp_ns",
         "cpuset/cpuset.cpus", "memory/memory.limit_in_bytes", "memory/memory.min", "memory/memory.low", "memory/memory.high"]


class Cluster:
    def __init__(self, node):
        self.node = node

    def get(self, *arguments):
        return json.loads(self.node.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects):
        self.node.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pods(self, namespace):
        return self.get("pods", "-n", namespace)["items"]

    def create_pod(self, pod, seconds=90):
        """Creates a pod, or creates it again, and waits until it is ready. Returns it with the seconds that took."""
        name = pod["metadata"]["name"]
        self.delete_pod(name)
        start = time.monotonic()
        self.node.kubectl("create", "-f", "-", given=json.dumps(pod))
        def ready():
            found = self.get("pod", name)
            conditions = {c["type"]: c for c in found.get("status", {}).get("conditions", [])}
            if conditions.get("Ready", {}).get("status") == "True":
                return found
            raise Failed(f"{found['status'].get('phase')}: {conditions.get('PodScheduled', {}).get('message', '')}")
        return eventually(f"pod {name} is ready", ready, seconds, 0.2), time.monotonic() - start

    def delete_pod(self, name):
        self.node.kubectl("delete", "pod", name, "--now", "--ignore-not-found", "--wait", "--timeout=60s")

    def settings(self, **values):
        """Sets keys of slo-controller-config; dots of a key are written as they are, underscores as dashes."""
        data = {key.replace("_", "-"): json.dumps(value) for key, value in values.items()}
        self.node.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "--type=merge", "-p", json.dumps({"data": data}))

    def allocatable(self, resource):
        return self.get("node", NAME)["status"]["allocatable"].get(resource)

    def events(self, reason):
        return self.get("events", "-A", f"--field-selector=reason={reason}")["items"]

    # cgroups

    def directory(self, pod, container=True):
        path = f"kubepods/{QOS_DIRECTORY[pod['status']['qosClass']]}pod{pod['metadata']['uid']}"
        if container:
            path += "/" + pod["status"]["containerStatuses"][0]["containerID"].split("//")[1]
        return path

    def read(self, file, directory):
        """Returns the text of a file such as cpu/cpu.shares in a directory below the node's group, None without it."""
        controller, name = file.split("/")
        try:
            return Path(GROUPS, controller, GROUP, directory, name).read_text().strip()
        except OSError:
            return None

    def values(self, pod, container=True):
        directory = self.directory(pod, container)
        return {f.split("/")[1]: value for f in FILES if (value := self.read(f, directory)) is not None}

    def wait_restarted(self, names, seconds=240):
        """Waits until pods are ready in containers that started after those of now have ended."""
        def restarted():
            for name in names:
                found = self.get("pod", name)
                conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
                status = found["status"]["containerStatuses"][0]
                if not (conditions["Ready"] == "True" and status["restartCount"] > 0 and status["state"].get("running")):
                    raise Failed(f"pod {name}: {status['state']}, restarts {status['restartCount']}")
            return True
        eventually("containers of services run again", restarted, seconds)

    def service_state(self):
        """Returns what must not change of pods of services: containers, restarts and values."""
        return {
            name: (status["containerID"], status["restartCount"], self.values(pod))
            for name in ("service", "pinned")
            for pod in [self.get("pod", name)]
            for status in pod["status"]["containerStatuses"]
        }


def container(command, requests=None, limits=None):
    return {"name": "main", "image": "koord.local/busybox:1", "command": ["/bin/sh", "-c", command],
            "resources": {"requests": requests or {}, "limits": limits or {}}}


def pod(name, main, labels=None, annotations=None, **spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels or {}, "annotations": annotations or {}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [main], **spec}}


# Works at intervals, so that koordlet measures a little.
WORK = "while :; do i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; sleep 0.2; done"
FIRST = "cd /sys/fs/cgroup; cat cpu/cpu.shares cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes; "

PROFILE = {
    "apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile", "metadata": {"name": "batch"},
    "spec": {"namespaceSelector": {"matchLabels": {"koordinator.sh/enable-colocation": "true"}},
             "selector": {"matchLabels": {"koordinator.sh/enable-colocation": "true"}},
             "qosClass": "BE", "priorityClassName": "koord-batch", "schedulerName": "koord-scheduler"},
}
BATCH = pod("batch", container(FIRST + WORK, {"cpu": "100m", "memory": "64Mi"}, {"cpu": "300m", "memory": "256Mi"}),
            {"koordinator.sh/enable-colocation": "true"})
# Quantities of BATCH in files of the kernel: shares of the request, quota and memory of the limit.
BATCH_VALUES = {"cpu.shares": "102", "cpu.cfs_quota_us": "30000", "memory.limit_in_bytes": str(256 << 20)}
SERVICE = pod("service", container(WORK, {"cpu": "200m", "memory": "64Mi"}, {"cpu": "400m", "memory": "128Mi"}),
              {"koordinator.sh/qosClass": "LS"}, schedulerName="koord-scheduler", priorityClassName="koord-prod")
PINNED = pod("pinned", container("cat /sys/fs/cgroup/cpuset/cpuset.cpus; grep Cpus_allowed_list /proc/self/status; sleep inf",
                                 {"cpu": "1", "memory": "64Mi"}, {"cpu": "1", "memory": "64Mi"}),
             {"koordinator.sh/qosClass": "LSR"}, {"scheduling.koordinator.sh/resource-spec": '{"preferredCPUBindPolicy":"SpreadByPCPUs"}'},
             schedulerName="koord-scheduler", priorityClassName="koord-prod")

# Objects that Koordinator's programs and koord's hand over.
QUOTA = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "swap", "namespace": "default"},
         "spec": {"min": {"cpu": "100m", "memory": "128Mi"}, "max": {"cpu": "500m", "memory": "1Gi"}}}
RESERVATION = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation", "metadata": {"name": "swap"},
    "spec": {"ttl": "24h", "owners": [{"labelSelector": {"matchLabels": {"app": "reserved"}}}],
             "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container("sleep inf", {"cpu": "50m", "memory": "32Mi"})]}}},
}
_MEMBER = {"pod-group.scheduling.sigs.k8s.io": "swap", "quota.scheduling.koordinator.sh/name": "swap"}
GANG = [
    {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "swap", "namespace": "default"},
     "spec": {"minMember": 2, "scheduleTimeoutSeconds": 60}},
    *(pod(f"gang-{member}", container("sleep inf", {"cpu": "20m", "memory": "32Mi"}, {"cpu": "40m", "memory": "64Mi"}), _MEMBER,
          schedulerName="koord-scheduler", priorityClassName="koord-prod") for member in range(2)),
]
