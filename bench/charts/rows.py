"""The values of the chart, each with what it changes, for `bench/chart`.

A row is (values, condition on the rendered objects): the condition must hold with the values and not without them.
"""

import json
from pathlib import Path

import facts


def env(r, name):
    """Returns an environment variable of koord-manager."""
    return next((v.get("value") for v in r.container("koord-manager")["env"] if v["name"] == name), None)


def ports(r, name):
    """Returns the ports of a workload by name."""
    return {port["name"]: port["containerPort"] for port in r.container(name)["ports"]}


def gates(r, name):
    """Returns the value of --feature-gates of a workload, or None."""
    found = [arg.split("=", 1)[1] for arg in r.args(name) if arg.startswith("--feature-gates=")]
    return found[0] if found else None


def probe(r, name):
    """Returns the request of a workload's readiness probe."""
    return r.container(name)["readinessProbe"]["httpGet"]


def rules(r, kind, name):
    """Returns the resources that the rules of a role name."""
    return {resource for rule in r.get(kind, name)["rules"] for resource in rule.get("resources", [])}


def plugins(r, point):
    """Returns the plugins that the scheduler's profile enables at an extension point."""
    (profile,) = r.config("koord-scheduler")["profiles"]
    return [plugin["name"] for plugin in profile["plugins"][point]["enabled"]]


def dashboards(r):
    """Returns the ConfigMaps of Grafana dashboards; fails where one is not a file of charts/koord/dashboards."""
    found = [o for o in r.objects if o["metadata"]["name"].startswith("koord-dashboard-")]
    for configmap in found:
        ((key, text),) = configmap["data"].items()
        file = Path(__file__).resolve().parents[2] / "charts/koord/dashboards" / key.removeprefix("koord-")
        if json.loads(text) != json.loads(file.read_text()):
            raise KeyError(key)
    return found


AFFINITY = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["batch"]}]}]}}
CONTROL = [("manager", "koord-manager"), ("scheduler", "koord-scheduler"), ("descheduler", "koord-descheduler")]
ALL = [("koordlet", "koordlet"), *CONTROL]
DIGEST = "sha256:" + "0" * 64

ROWS = [
    ({"crds": {"managed": False}}, lambda r: not [o for o in r.objects if o["kind"] == "CustomResourceDefinition"]),
    *[({"crds": {plural: False}},
       lambda r, p=plural: not [o for o in r.objects if o["metadata"]["name"].startswith(p + ".")])
      for plural in [*facts.CRDS, "recommendationcheckpoints"]],
    ({"crds": {"keep": False}},
     lambda r: "annotations" not in r.get("CustomResourceDefinition", "devices.scheduling.koordinator.sh")["metadata"]),
    ({"installation": {"namespace": "colocation"}}, lambda r: r.get("Namespace", "colocation")),
    ({"installation": {"namespace": "colocation"}}, lambda r: any(
        "--protected-pod-annotations-users=" in arg and "colocation:koordlet" in arg for arg in r.args("koord-manager"))),
    ({"installation": {"createNamespace": False}}, lambda r: not r.get("Namespace", "koordinator-system")),
    # Helm creates the namespace of the release.
    ({}, lambda r: not r.get("Namespace", "koordinator-system"), {"namespace": "koordinator-system"}),
    ({"installation": {"keepNamespace": False}},
     lambda r: "annotations" not in r.get("Namespace", "koordinator-system")["metadata"]),
    # Gates
    ({"featureGates": "MultiQuotaTree=true"}, lambda r: gates(r, "koord-manager") == "MultiQuotaTree=true"),
    ({"featureGates": "PodMutatingWebhook=false"}, lambda r: not {"mpod-create", "mpod-update"} & set(r.webhooks())),
    ({"featureGates": "PodValidatingWebhook=f"}, lambda r: "vpod" not in r.webhooks()),
    ({"featureGates": "ElasticMutatingWebhook=false"}, lambda r: "melasticquota" not in r.webhooks()),
    ({"featureGates": "ElasticValidatingWebhook=false"}, lambda r: "velasticquota" not in r.webhooks()),
    ({"featureGates": "ConfigMapValidatingWebhook=false"}, lambda r: "vconfigmap" not in r.webhooks()),
    ({"featureGates": "NodeMutatingWebhook = true"}, lambda r: "mnode-status" in r.webhooks()),
    ({"featureGates": "NodeValidatingWebhook=True"}, lambda r: "vnode" in r.webhooks()),
    ({"featureGates": "ReservationMutatingWebhook=1"}, lambda r: "mreservation-create" in r.webhooks()),
    ({"featureGates": "BindingAdmissionWebhook=true"}, lambda r: "vpodbinding" in r.webhooks()),
    ({"featureGates": "AllAlpha=true"}, lambda r: len(r.webhooks()) == 10 and "DisableDefaultQuota=true" in r.notes),
    ({"featureGates": "AllAlpha=true,NodeMutatingWebhook=false"},
     lambda r: "vnode" in r.webhooks() and "mnode-status" not in r.webhooks()),
    ({"featureGates": "WebhookFramework=false"}, lambda r: not r.webhooks()),
    # Images
    ({"imageRepositoryHost": "mirror.example:5000"},
     lambda r: all(r.container(name)["image"] == f"mirror.example:5000/koord/{name}:0.1.0" for _, name in ALL)),
    ({"imagePullPolicy": "Always"}, lambda r: all(r.container(name)["imagePullPolicy"] == "Always" for _, name in ALL)),
    ({"imagePullSecrets": [{"name": "pull"}]},
     lambda r: all(r.pod(name).get("imagePullSecrets") == [{"name": "pull"}] for _, name in ALL)),
    *[({key: {"image": {"repository": "team/agent", "tag": "7"}}},
       lambda r, n=name: r.container(n)["image"] == "localhost/team/agent:7") for key, name in ALL],
    *[({key: {"image": {"digest": DIGEST}}},
       lambda r, n=name: r.container(n)["image"] == f"localhost/koord/{n}@{DIGEST}") for key, name in ALL],
    # Another tag of Koordinator's image is honored, and warned of.
    ({"koordlet": {"image": {"repository": "koordinator-sh/koordlet", "tag": "v1.7.0"}}},
     lambda r: r.container("koordlet")["image"].endswith("koordinator-sh/koordlet:v1.7.0")
     and "is an image of Koordinator" in r.notes),
    # All components
    *[({key: {"resources": {"limits": {"memory": "3Gi"}}}},
       lambda r, n=name: r.container(n)["resources"]["limits"]["memory"] == "3Gi") for key, name in ALL],
    *[({key: {"log": {"level": 6}}}, lambda r, n=name: "--v=6" in r.args(n)) for key, name in ALL],
    *[({key: {"extraArgs": ["--x=1"]}}, lambda r, n=name: r.args(n)[-1] == "--x=1") for key, name in ALL],
    *[({key: {"priorityClassName": "mine"}}, lambda r, n=name: r.pod(n).get("priorityClassName") == "mine")
      for key, name in ALL],
    *[({key: {"nodeAffinity": value}}, lambda r, n=name: r.pod(n).get("affinity") == {"nodeAffinity": AFFINITY})
      for key, name in ALL for value in (AFFINITY, {"nodeAffinity": AFFINITY})],
    # Deployments
    *[({key: {"replicas": 1}}, lambda r, n=name: r.workload(n)["spec"]["replicas"] == 1
       and not r.get("PodDisruptionBudget", n)) for key, name in CONTROL],
    *[({key: {"hostNetwork": True}}, lambda r, n=name: r.pod(n).get("hostNetwork") is True
       and r.pod(n)["dnsPolicy"] == "ClusterFirstWithHostNet") for key, name in CONTROL],
    *[({key: {"nodeSelector": {"pool": "control"}}}, lambda r, n=name: r.pod(n).get("nodeSelector") == {"pool": "control"})
      for key, name in CONTROL],
    *[({key: {"tolerations": [{"operator": "Exists"}]}},
       lambda r, n=name: r.pod(n).get("tolerations") == [{"operator": "Exists"}]) for key, name in CONTROL],
    # koordlet
    ({"koordlet": {"features": "PSICollector=true"}}, lambda r: gates(r, "koordlet") == "PSICollector=true"),
    ({"koordlet": {"hostDirs": {"kubeletLibDir": "/data/kubelet"}}},
     lambda r: r.volume("koordlet", "kubelet")["hostPath"]["path"] == "/data/kubelet/"
     and r.mount("koordlet", "kubelet")["mountPath"] == "/data/kubelet/"
     and "--var-lib-kubelet-dir=/data/kubelet/" in r.args("koordlet")),
    ({"koordlet": {"hostDirs": {"koordProxyRegisterDir": "/etc/hooks"}}},
     lambda r: r.volume("koordlet", "hookservers")["hostPath"] == {"path": "/etc/hooks", "type": "DirectoryOrCreate"}),
    ({"koordlet": {"hostDirs": {"predictionCheckpointDir": "/data/models"}}},
     lambda r: r.volume("koordlet", "checkpoints")["hostPath"]["path"] == "/data/models"),
    ({"koordlet": {"hostDirs": {"koordletSockDir": "/run/agent/"}}},
     lambda r: r.volume("koordlet", "run")["hostPath"]["path"] == "/run/agent/"
     and "--runtime-hooks-host-endpoint=/run/agent/koordlet.sock" in r.args("koordlet")),
    ({"koordlet": {"hostDirs": {"koordletTSDBDir": "/data/samples"}}},
     lambda r: r.volume("koordlet", "samples")["hostPath"]["path"] == "/data/samples"),
    ({"koordlet": {"hostDirs": {"koordletTSDBDir": ""}}},
     lambda r: r.volume("koordlet", "samples").get("emptyDir") == {"medium": "Memory", "sizeLimit": "150Mi"}),
    ({"koordlet": {"runtimeClassName": "nvidia"}}, lambda r: r.pod("koordlet").get("runtimeClassName") == "nvidia"),
    ({"koordlet": {"metrics": {"port": 9999}}}, lambda r: "--addr=127.0.0.1:9999" in r.args("koordlet")
     and probe(r, "koordlet")["port"] == 9999),
    ({"koordlet": {"enableServiceMonitor": True}}, lambda r: "--addr=:9316" in r.args("koordlet")
     and r.get("Service", "koordlet-service") and r.get("ServiceMonitor", "koordlet-service-monitor")),
    ({"koordlet": {"kubeletAccess": "proxy"}}, lambda r: "nodes/proxy" in rules(r, "ClusterRole", "koordlet-role")
     and "nodes/pods" not in rules(r, "ClusterRole", "koordlet-role") and "koordlet.kubeletAccess:" in r.notes),
    ({"koordlet": {"kubeletAccess": "apiserver"}}, lambda r: "pods" in rules(r, "ClusterRole", "koordlet-role")
     and "--pod-source=apiserver" in r.args("koordlet")),
    ({}, lambda r: "--pod-source=apiserver" in r.args("koordlet"), {"kube": "1.32.5"}),
    ({}, lambda r: not r.get("ValidatingAdmissionPolicy", "koordlet-node"), {"kube": "1.31.0"}),
    ({"koordlet": {"nodePolicy": False}}, lambda r: not r.get("ValidatingAdmissionPolicy", "koordlet-node")),
    ({"koordlet": {"cpuSuppressMode": "upstream"}}, lambda r: "--cpu-suppress-mode=upstream" in r.args("koordlet")),
    ({"koordlet": {"restoreOnStop": True}}, lambda r: "--restore-on-stop" in r.args("koordlet")),
    ({"koordlet": {"topologyExporter": True}}, lambda r: "--topology-exporter" in r.args("koordlet")),
    ({"koordlet": {"maxUnavailable": 1}},
     lambda r: r.workload("koordlet")["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1),
    ({"koordlet": {"serviceAccountAnnotations": {"a": "b"}}},
     lambda r: r.get("ServiceAccount", "koordlet")["metadata"].get("annotations") == {"a": "b"}),
    # Manager and webhooks
    ({"manager": {"webhook": {"port": 9443}}}, lambda r: env(r, "WEBHOOK_PORT") == "9443"
     and r.get("Service", "koordinator-webhook-service")["spec"]["ports"][0]["targetPort"] == 9443
     and ports(r, "koord-manager")["webhook-server"] == 9443),
    ({"manager": {"metrics": {"addr": "127.0.0.1", "port": 8081}}},
     lambda r: "--metrics-addr=127.0.0.1:8081" in r.args("koord-manager") and ports(r, "koord-manager")["metrics"] == 8081),
    ({"manager": {"healthProbe": {"port": 8001}}}, lambda r: "--health-probe-addr=:8001" in r.args("koord-manager")
     and ports(r, "koord-manager")["health"] == 8001),
    ({"manager": {"resyncPeriod": "1m"}}, lambda r: "--sync-period=1m" in r.args("koord-manager")),
    ({"manager": {"monitorEnabled": True}}, lambda r: r.get("PodMonitor", "koord-manager-metrics-podmonitor")),
    ({"webhookConfiguration": {"failurePolicy": {"pods": "Fail"}}},
     # Only the webhooks have it: a policy that the manager also sets would have two writers.
     lambda r: not env(r, "WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS")
     and {n for n, w in r.webhooks().items() if w["failurePolicy"] == "Fail"} == {"mpod-create", "mpod-update", "vpod"}),
    ({"webhookConfiguration": {"failurePolicy": {"elasticquotas": "Fail"}}},
     lambda r: {n for n, w in r.webhooks().items() if w["failurePolicy"] == "Fail"} == {"melasticquota", "velasticquota"}),
    ({"webhookConfiguration": {"failurePolicy": {"configmaps": "Fail"}}},
     lambda r: r.webhooks()["vconfigmap"]["failurePolicy"] == "Fail"),
    *[({"featureGates": "AllAlpha=true", "webhookConfiguration": {"failurePolicy": {key: "Fail"}}},
       lambda r, n=name: r.webhooks().get(n, {}).get("failurePolicy") == "Fail")
      for key, name in (("nodeStatus", "mnode-status"), ("nodes", "vnode"), ("reservations", "mreservation-create"),
                        ("bindings", "vpodbinding"))],
    ({"webhookConfiguration": {"timeoutSeconds": 30}},
     lambda r: {w["timeoutSeconds"] for w in r.webhooks().values()} == {30} and "waits 30 s" in r.notes),
    ({"serviceAccount": {"annotations": {"a": "b"}}},
     lambda r: r.get("ServiceAccount", "koord-manager")["metadata"].get("annotations") == {"a": "b"}),
    # Scheduler
    ({"scheduler": {"port": 10251}}, lambda r: "--port=10251" in r.args("koord-scheduler")
     and ports(r, "koord-scheduler")["metrics"] == 10251),
    ({"scheduler": {"port": 10251, "securePort": 0}}, lambda r: probe(r, "koord-scheduler")["port"] == "metrics"),
    ({"scheduler": {"securePort": 11259}}, lambda r: "--secure-port=11259" in r.args("koord-scheduler")
     and ports(r, "koord-scheduler")["https"] == 11259),
    ({"scheduler": {"featureGates": "ExpirePendingReservations=true"}},
     lambda r: gates(r, "koord-scheduler") == "ExpirePendingReservations=true"),
    ({"scheduler": {"enableJobPreemption": False}}, lambda r: plugins(r, "postFilter")[-1] == "DefaultPreemption"
     and "enablePreemption" not in r.plugin_args("Coscheduling")),
    ({"scheduler": {"deviceShare": None}}, lambda r: not r.plugin_args("DeviceShare")),
    ({"scheduler": {"deviceShare": {"gpuShareUnsupportedModels": [{"vendor": "v", "model": "m"}]}}},
     lambda r: r.plugin_args("DeviceShare").get("gpuShareUnsupportedModels") == [{"vendor": "v", "model": "m"}]),
    ({"scheduler": {"loadAware": {"usageThresholds": {"cpu": 0}}}},
     lambda r: r.plugin_args("LoadAwareScheduling")["usageThresholds"] == {"cpu": 0, "memory": 95}),
    ({"scheduler": {"config": "kind: Mine\nprofiles: [{pluginConfig: []}]\n"}},
     lambda r: r.config("koord-scheduler")["kind"] == "Mine"),
    ({"scheduler": {"monitorEnabled": True}}, lambda r: endpoint(r, "scheduler").get("scheme") == "https"
     and r.get("Secret", "koord-metrics-reader")),
    ({"scheduler": {"monitorEnabled": True, "port": 10251}}, lambda r: endpoint(r, "scheduler").get("port") == "metrics"
     and not r.get("Secret", "koord-metrics-reader")),
    ({"scheduler": {"serviceAccountAnnotations": {"a": "b"}}},
     lambda r: r.get("ServiceAccount", "koord-scheduler")["metadata"].get("annotations") == {"a": "b"}),
    # Descheduler
    ({"descheduler": {"port": 10251}},
     lambda r: r.config("koord-descheduler")["metricsBindAddress"] == "0.0.0.0:10251"
     and ports(r, "koord-descheduler")["metrics"] == 10251),
    ({"descheduler": {"securePort": 11258}}, lambda r: "--secure-port=11258" in r.args("koord-descheduler")),
    ({"descheduler": {"featureGates": "DisablePVCReservation=true"}},
     lambda r: gates(r, "koord-descheduler") == "DisablePVCReservation=true"),
    ({"descheduler": {"findTargets": False}}, lambda r: "--find-targets" not in r.args("koord-descheduler")
     and not r.get("ClusterRole", "koord-descheduler-targets")),
    ({"descheduler": {"config": "kind: Mine\n"}}, lambda r: r.config("koord-descheduler") == {"kind": "Mine"}),
    ({"descheduler": {"monitorEnabled": True}}, lambda r: endpoint(r, "descheduler").get("scheme") == "https"
     and endpoint(r, "descheduler").get("honorLabels") is True),
    ({"descheduler": {"serviceAccountAnnotations": {"a": "b"}}},
     lambda r: r.get("ServiceAccount", "koord-descheduler")["metadata"].get("annotations") == {"a": "b"}),
    # The rest
    ({"topologyExporter": {"enabled": True}}, lambda r: r.get("DaemonSet", "koord-topology-exporter")
     and r.get("ValidatingAdmissionPolicy", "koord-topology-exporter-node")),
    ({"topologyExporter": {"enabled": True, "kubeletConfig": "/etc/kubelet.yaml", "extraArgs": ["--take-over"]}},
     lambda r: r.get("DaemonSet", "koord-topology-exporter") and "--take-over" in r.args("koord-topology-exporter")
     and r.volume("koord-topology-exporter", "kubelet-config")["hostPath"]["path"] == "/etc/kubelet.yaml"),
    ({"sloConfig": {"create": False}}, lambda r: not r.get("ConfigMap", "slo-controller-config")),
    ({"sloConfig": {"data": {"cpu-burst-config": {"clusterStrategy": {"policy": "auto"}}, "colocation-config": "{}"}}},
     lambda r: r.get("ConfigMap", "slo-controller-config")["data"]["colocation-config"] == "{}"
     and r.get("ConfigMap", "slo-controller-config")["data"]["cpu-burst-config"] == '{"clusterStrategy":{"policy":"auto"}}'),
    ({"podDisruptionBudgets": {"enabled": False}}, lambda r: not r.get("PodDisruptionBudget", "koord-manager")),
    ({"networkPolicies": {"enabled": True}}, lambda r: all(r.get("NetworkPolicy", name) for _, name in CONTROL)),
    ({"networkPolicies": {"enabled": True, "metricsFrom": [{"podSelector": {}}]}},
     lambda r: r.get("NetworkPolicy", "koord-manager") and r.get("NetworkPolicy", "koord-manager")["spec"]["ingress"][1]
     == {"from": [{"podSelector": {}}], "ports": [{"port": 8080}]}),
    ({"prometheusRules": {"enabled": True}}, lambda r: len(r.get("PrometheusRule", "koord").get("spec", {}).get("groups", [])) == 2),
    ({"dashboards": {"enabled": True}}, lambda r: len(dashboards(r)) == 3 and all(
        o["metadata"]["labels"]["grafana_dashboard"] == "1" and "annotations" not in o["metadata"] for o in dashboards(r))),
    ({"dashboards": {"enabled": True, "labels": {"team": "a"}, "annotations": {"folder": "koord"}}},
     lambda r: {o["metadata"]["labels"]["team"] + o["metadata"]["annotations"]["folder"] for o in dashboards(r)} == {"akoord"}),
    ({"manager": {"monitorEnabled": True}, "monitoring": {"labels": {"release": "p"}}},
     lambda r: r.get("PodMonitor", "koord-manager-metrics-podmonitor")
     and r.get("PodMonitor", "koord-manager-metrics-podmonitor")["metadata"]["labels"]["release"] == "p"),
]


def endpoint(r, component):
    """Returns the endpoint of a component's PodMonitor, or {}."""
    monitor = r.get("PodMonitor", f"koord-{component}-metrics-podmonitor")
    return monitor["spec"]["podMetricsEndpoints"][0] if monitor else {}


# Values without effect, with the names that the notes list for them.
NAMED = [
    ({}, []),
    (facts.UPSTREAM_VALUES, [
        "installation.roleListGroups", "koordlet.hostDirs.kubeletConfigDir", "koordlet.hostDirs.podResourcesProxyPath",
        "manager.resyncPeriod", "scheduler.compatible122FeatureGates", "scheduler.compatibleBelow122FeatureGates",
        "deviceDaemon.image", "deviceDaemon.log", "deviceDaemon.nodeAffinity", "deviceDaemon.resources",
        "imageRepositoryHost", "descheduler.image, koordlet.image, manager.image, scheduler.image",
    ]),
    ({"nameOverride": "x", "fullnameOverride": "y"}, ["nameOverride", "fullnameOverride"]),
    ({"deviceDaemon": {"enabled": False}}, []),
    ({"koordlet": {"features": "TerwayQoS=true,PSICollector=true"}}, ["koordlet.features TerwayQoS"]),
    ({"featureGates": "DisablePVCReservation=true"}, ["featureGates DisablePVCReservation"]),
    ({"scheduler": {"featureGates": "ResizePod=true"}}, ["scheduler.featureGates ResizePod"]),
    ({"descheduler": {"featureGates": "MultiQuotaTree=true"}}, ["descheduler.featureGates MultiQuotaTree"]),
    ({"networkPolicies": {"metricsFrom": [{"podSelector": {}}]}}, ["networkPolicies.metricsFrom"]),
    ({"networkPolicies": {"enabled": True}, "manager": {"hostNetwork": True}}, ["networkPolicies"]),
]

# Wrong values, with a part of the message.
REFUSED = [
    ({"crds": {"managd": False}}, "/crds"),
    ({"crds": {"devices": "no"}}, "/crds/devices"),
    ({"unknown": 1}, "unknown"),
    ({"installation": {"namespace": "Upper"}}, "/installation/namespace"),
    ({"featureGates": "MultiQuotaTree"}, "/featureGates"),
    ({"featureGates": "MultiQuotaTree=yes"}, "/featureGates"),
    ({"featureGates": "NoSuchGate=true"}, 'featureGates: no program has a feature gate "NoSuchGate"'),
    ({"featureGates": "CPICollector=true,PSICollector=true"}, "set it in koordlet.features"),
    ({"koordlet": {"features": "MultiQuotaTree=true"}}, "koordlet.features: MultiQuotaTree is no gate of koordlet"),
    ({"scheduler": {"featureGates": "CSIStorageCapacity=false"}}, "CSIStorageCapacity cannot be set to false"),
    ({"imagePullPolicy": "Sometimes"}, "/imagePullPolicy"),
    ({"imagePullSecrets": [{"nam": "x"}]}, "/imagePullSecrets"),
    ({"imagePullSecrets": {"name": "x"}}, "/imagePullSecrets"),
    ({"koordlet": {"metrics": {"port": 70000}}}, "/koordlet/metrics/port"),
    ({"koordlet": {"metrics": {"port": "9316"}}}, "/koordlet/metrics/port"),
    ({"koordlet": {"resources": {"limits": {"memory": "lots"}}}}, "/koordlet/resources/limits/memory"),
    ({"koordlet": {"log": {"level": "debug"}}}, "/koordlet/log/level"),
    ({"koordlet": {"hostDirs": {"kubeletLibDir": "var/lib"}}}, "/koordlet/hostDirs/kubeletLibDir"),
    ({"koordlet": {"kubeletAccess": "magic"}}, "/koordlet/kubeletAccess"),
    ({"koordlet": {"cpuSuppressMode": "none"}}, "/koordlet/cpuSuppressMode"),
    ({"koordlet": {"nodeAffinity": {"nodeSelectorTerms": []}}}, "/koordlet/nodeAffinity"),
    ({"manager": {"replicas": "two"}}, "/manager/replicas"),
    ({"manager": {"replicas": -1}}, "/manager/replicas"),
    ({"manager": {"image": {"digest": "latest"}}}, "/manager/image/digest"),
    ({"webhookConfiguration": {"failurePolicy": {"pods": "ignore"}}}, "/webhookConfiguration/failurePolicy/pods"),
    ({"webhookConfiguration": {"timeoutSeconds": 31}}, "/webhookConfiguration/timeoutSeconds"),
    ({"scheduler": {"loadAware": {"usageThresholds": {"cpu": 101}}}}, "/scheduler/loadAware/usageThresholds/cpu"),
    ({"scheduler": {"securePort": 0}}, "scheduler.securePort"),
    ({"descheduler": {"securePort": 0}}, "descheduler.securePort"),
    ({"deviceDaemon": {"enabled": True}}, "/deviceDaemon/enabled"),
    ({"sloConfig": {"data": {"colocation-config": 1}}}, "/sloConfig/data/colocation-config"),
    ({"dashboards": {"enabled": "yes"}}, "/dashboards/enabled"),
    ({"dashboards": {"labels": {"grafana_dashboard": 1}}}, "/dashboards/labels/grafana_dashboard"),
    ({}, "kubeVersion", {"kube": "1.27.9"}),
]

# What holds with the defaults.
ALWAYS = [
    ("the webhooks of the chart", lambda r: set(r.webhooks()) == {
        "mpod-create", "mpod-update", "melasticquota", "vpod", "velasticquota", "vconfigmap"}),
    ("no webhook has a caBundle", lambda r: not [w for w in r.webhooks().values() if "caBundle" in w["clientConfig"]]),
    ("webhooks ignore an absent manager", lambda r: {w["failurePolicy"] for w in r.webhooks().values()} == {"Ignore"}),
    ("the namespace is left out by the webhooks", lambda r: r.get("Namespace", "koordinator-system")["metadata"]["labels"][
        "control-plane"] == "koordinator"),
    ("the manager creates no CRDs", lambda r: not [
        rule for rule in r.get("ClusterRole", "koord-manager-role")["rules"]
        if "create" in rule["verbs"] and {"customresourcedefinitions", "priorityclasses"} & set(rule["resources"])]),
    ("koordlet's gates", lambda r: gates(r, "koordlet")
     == "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true"),
    ("hot nodes are filtered", lambda r: r.plugin_args("LoadAwareScheduling")["usageThresholds"] == {"cpu": 65, "memory": 95}),
    ("gangs preempt", lambda r: r.plugin_args("Coscheduling")
     == {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "CoschedulingArgs", "enablePreemption": True,
         "awareNetworkTopology": True}),
    ("two replicas", lambda r: [r.workload(name)["spec"]["replicas"] for _, name in CONTROL] == [2, 2, 2]),
]
