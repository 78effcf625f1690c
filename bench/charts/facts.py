"""Facts that `bench/chart` compares: Koordinator's chart v1.8.0, and what koord's differs in."""

# The values of Koordinator's chart, with their defaults. `bench/chart --upstream DIR` compares them.
CRDS = [
    "clustercolocationprofiles", "devices", "elasticquotaprofiles", "elasticquotas", "nodemetrics", "nodeslos",
    "noderesourcetopologies", "recommendations", "reservations", "podgroups", "podmigrationjobs",
    "clusternetworktopologies", "scheduleexplanations",
]
AGENT_RESOURCES = {"limits": {"cpu": "200m", "memory": "256Mi"}, "requests": {"cpu": "0", "memory": "0"}}
CONTROL_RESOURCES = {"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}


def _image(name: str) -> dict:
    return {"repository": f"koordinator-sh/{name}", "tag": "v1.8.0"}


def _control(name: str) -> dict:
    return {
        "log": {"level": "4"}, "replicas": 2, "image": _image(name), "resources": CONTROL_RESOURCES,
        "hostNetwork": False, "nodeAffinity": {}, "nodeSelector": {}, "tolerations": [],
    }


UPSTREAM_VALUES = {
    "crds": {"managed": True, **{name: True for name in CRDS}},
    "installation": {"namespace": "koordinator-system", "roleListGroups": ["*"]},
    "featureGates": "",
    "imageRepositoryHost": "registry.cn-beijing.aliyuncs.com",
    "imagePullSecrets": {},
    "koordlet": {
        "image": _image("koordlet"), "resources": AGENT_RESOURCES, "features": "", "log": {"level": "4"},
        "hostDirs": {
            "kubeletConfigDir": "/etc/kubernetes/", "kubeletLibDir": "/var/lib/kubelet/",
            "koordProxyRegisterDir": "/etc/runtime/hookserver.d/", "koordletSockDir": "/var/run/koordlet",
            "predictionCheckpointDir": "/var/run/koordlet/prediction-checkpoints", "koordletTSDBDir": "",
            "podResourcesProxyPath": "/var/run/koordlet/pod-resources/",
        },
        "runtimeClassName": "", "nodeAffinity": {}, "metrics": {"port": 9316}, "enableServiceMonitor": False,
    },
    "manager": {
        **_control("koord-manager"), "webhook": {"port": 9876}, "metrics": {"addr": "", "port": 8080},
        "healthProbe": {"port": 8000}, "resyncPeriod": "0",
    },
    "webhookConfiguration": {
        "failurePolicy": {
            name: "Ignore" for name in ("pods", "elasticquotas", "nodeStatus", "nodes", "reservations")
        },
        "timeoutSeconds": 30,
    },
    "serviceAccount": {"annotations": {}},
    "scheduler": {
        **_control("koord-scheduler"), "port": 10251, "featureGates": "",
        "compatible122FeatureGates": "CompatibleCSIStorageCapacity=true",
        "compatibleBelow122FeatureGates": "DisableCSIStorageCapacityInformer=true,CompatiblePodDisruptionBudget=true",
        "enableJobPreemption": True,
        "deviceShare": {"gpuShareUnsupportedModels": [{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]},
        "monitorEnabled": False,
    },
    "descheduler": {**_control("koord-descheduler"), "port": 10251, "featureGates": "", "monitorEnabled": False},
    "deviceDaemon": {
        "image": _image("koord-device-daemon"), "resources": AGENT_RESOURCES, "log": {"level": "4"},
        "nodeAffinity": {},
    },
}

# What Koordinator's chart renders by default.
GROUPS = {
    "clustercolocationprofiles": "config.koordinator.sh", "elasticquotaprofiles": "quota.koordinator.sh",
    "elasticquotas": "scheduling.sigs.k8s.io", "podgroups": "scheduling.sigs.k8s.io",
    "nodemetrics": "slo.koordinator.sh", "nodeslos": "slo.koordinator.sh",
    "noderesourcetopologies": "topology.node.k8s.io", "recommendations": "analysis.koordinator.sh",
}
UPSTREAM_OBJECTS = [
    ("Namespace", "koordinator-system"),
    ("Service", "koordinator-webhook-service"),
    ("Secret", "koordinator-webhook-certs"),
    *[("Deployment", name) for name in ("koord-manager", "koord-scheduler", "koord-descheduler")],
    *[("DaemonSet", name) for name in ("koordlet", "koord-device-daemon")],
    *[("ServiceAccount", name) for name in ("koord-manager", "koord-scheduler", "koord-descheduler", "koordlet")],
    ("Role", "koord-leader-election-role"),
    ("RoleBinding", "koord-leader-election-rolebinding"),
    *[("ClusterRole", f"{name}-role") for name in ("koord-manager", "koord-scheduler", "koord-descheduler", "koordlet")],
    *[("ClusterRoleBinding", name) for name in (
        "koord-manager-rolebinding", "koord-scheduler-rolebinding", "koord-scheduler-rolebinding-volume",
        "koord-scheduler-rolebinding-custom", "koord-descheduler-rolebinding", "koordlet-rolebinding",
    )],
    *[("ConfigMap", name) for name in (
        "slo-controller-config", "koord-scheduler-config", "koord-descheduler-config", "gpu-shared-resource-templates",
    )],
    *[("PriorityClass", f"koord-{name}") for name in ("prod", "mid", "batch", "free")],
    ("MutatingWebhookConfiguration", "koordinator-mutating-webhook-configuration"),
    ("ValidatingWebhookConfiguration", "koordinator-validating-webhook-configuration"),
    *[("CustomResourceDefinition", f"{name}.{GROUPS.get(name, 'scheduling.koordinator.sh')}") for name in CRDS],
]

# Objects that only one of the charts has by default; docs/install.md has the reasons.
ONLY_UPSTREAM = [
    ("DaemonSet", "koord-device-daemon"),
    ("ConfigMap", "gpu-shared-resource-templates"),
    ("Role", "koord-leader-election-role"),
    ("RoleBinding", "koord-leader-election-rolebinding"),
    ("ClusterRoleBinding", "koord-scheduler-rolebinding"),
    ("ClusterRoleBinding", "koord-scheduler-rolebinding-volume"),
]
ONLY_HERE = [
    *[(kind, name) for kind in ("Role", "RoleBinding") for name in ("koord-manager", "koord-scheduler", "koord-descheduler")],
    *[("PodDisruptionBudget", name) for name in ("koord-manager", "koord-scheduler", "koord-descheduler")],
    ("ClusterRole", "koord-descheduler-targets"),
    ("ClusterRoleBinding", "koord-descheduler-targets"),
    ("ValidatingAdmissionPolicy", "koordlet-node"),
    ("ValidatingAdmissionPolicyBinding", "koordlet-node"),
    ("CustomResourceDefinition", "recommendationcheckpoints.analysis.koordinator.sh"),
]

NAMESPACED = {
    "Service", "Secret", "Deployment", "DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ConfigMap",
    "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "PodMonitor", "PrometheusRule",
}

# Rights that the roles in the chart's files lack, and that a value asks for.
MORE_RIGHTS = {
    "koordlet-role": {
        ("topology.node.k8s.io", "noderesourcetopologies", "", "get"),
        ("", "nodes/proxy", "", "get"),
        ("", "pods", "", "list"),
        ("", "pods", "", "watch"),
    },
    "koord-metrics-reader": {("", path, "", "get") for path in ("/metrics", "/metrics/resources", "/metrics/slis")},
}

# Everything that is off by default.
EVERYTHING = {
    "featureGates": "AllAlpha=true",
    "koordlet": {"enableServiceMonitor": True, "topologyExporter": True, "restoreOnStop": True},
    "manager": {"monitorEnabled": True},
    "scheduler": {"monitorEnabled": True},
    "descheduler": {"monitorEnabled": True},
    "topologyExporter": {"enabled": True},
    "networkPolicies": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "prometheusRules": {"enabled": True},
    "dashboards": {"enabled": True},
}
