"""A small client of an API server behind `kubectl proxy`."""
import http.client
import json
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

# kind: prefix, plural, whether it has a namespace
KINDS = {
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Namespace": ("/api/v1", "namespaces", False),
    "NodeMetric": ("/apis/slo.koordinator.sh/v1alpha1", "nodemetrics", False),
    "NodeSLO": ("/apis/slo.koordinator.sh/v1alpha1", "nodeslos", False),
    "NodeResourceTopology": ("/apis/topology.node.k8s.io/v1alpha1", "noderesourcetopologies", False),
    "Device": ("/apis/scheduling.koordinator.sh/v1alpha1", "devices", False),
    "ElasticQuota": ("/apis/scheduling.sigs.k8s.io/v1alpha1", "elasticquotas", True),
    "ElasticQuotaProfile": ("/apis/quota.koordinator.sh/v1alpha1", "elasticquotaprofiles", True),
    "ClusterColocationProfile": ("/apis/config.koordinator.sh/v1alpha1", "clustercolocationprofiles", False),
}


class Refused(Exception):
    def __init__(self, method, path, status, body):
        super().__init__(f"{method} {path}: {status} {body[:600]}")
        self.status = status


class Api:
    def __init__(self, url):
        self.host = urllib.parse.urlparse(url).netloc
        self.local = threading.local()

    def call(self, method, path, body=None, patch=None):
        data = None if body is None else json.dumps(body)
        kind = {None: "application/json", "merge": "application/merge-patch+json"}[patch]
        for attempt in range(10):
            try:
                if getattr(self.local, "connection", None) is None:
                    self.local.connection = http.client.HTTPConnection(self.host, timeout=60)
                self.local.connection.request(method, path, data, {"Content-Type": kind})
                answer = self.local.connection.getresponse()
                text = answer.read().decode()
                # A server answers so before its storage of a new kind is ready; a proxy may fail for a moment.
                if answer.status != 429 and (method != "GET" or answer.status < 500):
                    break
                time.sleep(1)
            except (OSError, http.client.HTTPException):
                self.local.connection = None
                if attempt >= 2:
                    raise
        if answer.status >= 300:
            raise Refused(method, path, answer.status, text)
        return json.loads(text)

    @staticmethod
    def path(kind, name="", namespace="", sub=""):
        prefix, plural, namespaced = KINDS[kind]
        place = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return prefix + place + "/" + plural + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")

    def at(self, thing, sub=""):
        meta = thing["metadata"]
        return self.path(thing["kind"], meta["name"], meta.get("namespace", ""), sub)

    def create(self, thing):
        """Creates an object and, as most servers drop it then, its status."""
        meta = thing["metadata"]
        prefix = KINDS[thing["kind"]][0]
        version = prefix.removeprefix("/apis/").removeprefix("/api/")
        made = self.call("POST", self.path(thing["kind"], "", meta.get("namespace", "")),
                         {"apiVersion": version, **thing})
        if "status" in thing and thing["kind"] in ("Pod", "NodeMetric"):
            self.call("PATCH", self.at(thing, "status"), {"status": thing["status"]}, "merge")
        return made

    def patch(self, kind, name, change, namespace="", sub=""):
        return self.call("PATCH", self.path(kind, name, namespace, sub), change, "merge")

    def delete(self, kind, name, namespace=""):
        try:
            self.call("DELETE", self.path(kind, name, namespace), {"gracePeriodSeconds": 0})
        except Refused as refused:
            if refused.status != 404:
                raise

    def list(self, kind):
        answer = self.call("GET", self.path(kind))
        return answer["items"]

    @staticmethod
    def each(things, do):
        """Calls `do` on each, a few at a time."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(do, things))
