"""Steps that change settings and objects of the population, one after the other."""
import json

# Every difference is written at once: the comparison must not depend on its time.
AT_ONCE = {"resourceDiffThreshold": 0.000001, "updateTimeThresholdSeconds": 1}


def selector(**labels):
    return {"nodeSelector": {"matchLabels": labels}}


def expression(key, operator, *values):
    return {"nodeSelector": {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}}


MODELS = {"XYZ": {"baseRatio": 1.1, "hyperThreadEnabledRatio": 1.2, "turboEnabledRatio": 1.35, "hyperThreadTurboEnabledRatio": 1.5},
          "no-base": {"hyperThreadEnabledRatio": 1.2}, "too-much": {"hyperThreadTurboEnabledRatio": 7},
          "too-little": {"hyperThreadTurboEnabledRatio": 0.5}}
APPS = [{"name": "nginx", "priority": "koord-prod", "qos": "LS",
         "cgroupPath": {"base": "CgroupRoot", "parentDir": "nginx", "relativePath": "main"}}]
QOS = {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}, "memoryQOS": {"enable": True, "wmarkRatio": 90}},
       "policies": {"cpuPolicy": "coreSched"}}

on = {"enable": True, **AT_ONCE}
STEPS = {
    "absent": {"config": None},
    "enabled": {"config": {"colocation-config": on}},
    "shipped": {"config": {"colocation-config": {"enable": True}, "resource-threshold-config": {"clusterStrategy": {"enable": True}}}},
    "sections": {"config": {
        "colocation-config": {**on, "cpuReclaimThresholdPercent": 70, "memoryReclaimThresholdPercent": 80,
                              "midUnallocatedPercent": 30, "metricReportIntervalSeconds": 30,
                              "nodeConfigs": [
                                  {"name": "gold", **selector(pool="a", tier="gold"), "cpuReclaimThresholdPercent": 20},
                                  {"name": "a", **selector(pool="a"), "cpuReclaimThresholdPercent": 50,
                                   "cpuCalculatePolicy": "maxUsageRequest"},
                                  {"name": "bc", **expression("pool", "In", "b", "c"), "memoryCalculatePolicy": "request"},
                                  {"name": "off", **expression("only-c", "Exists"), "enable": False}]},
        "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
                                      "nodeStrategies": [{"name": "a", **selector(pool="a"), "enable": False},
                                                         {"name": "b", **selector(pool="b"), "memoryEvictThresholdPercent": 80,
                                                          "memoryEvictLowerPercent": 75}]},
        "resource-qos-config": {"clusterStrategy": QOS,
                                "nodeStrategies": [{"name": "a", **selector(pool="a"),
                                                    "beClass": {"cpuQOS": {"groupIdentity": 0}}, "lsClass": {"memoryQOS": {"enable": True}}}]},
        "cpu-burst-config": {"clusterStrategy": {"policy": "auto"},
                             "nodeStrategies": [{"name": "b", **selector(pool="b"), "cpuBurstPercent": 500}]},
        "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 100, "totalNetworkBandwidth": "25G"},
                          "nodeStrategies": [{"name": "s", **selector(slo="system"), "watermarkScaleFactor": 150},
                                             {"name": "b", **selector(pool="b"), "totalNetworkBandwidth": "40G"}]},
        "host-application-config": {"applications": APPS,
                                    "nodeConfigs": [{"name": "a", **selector(pool="a"), "applications": []},
                                                    {"name": "b", **selector(pool="b"), "applications": [{"name": "other"}]}]},
        "cpu-normalization-config": {"enable": False, "ratioModel": MODELS},
        "resource-amplification-config": {"enable": False}}},
    "ratios": {"config": {
        "colocation-config": {**on, "cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "maxUsageRequest",
                              "batchCPUThresholdPercent": 40, "batchMemoryThresholdPercent": 30},
        "cpu-normalization-config": {"enable": True, "ratioModel": MODELS, "nodeConfigs": [
            {"name": "a", **selector(pool="a"), "enable": False}, {"name": "b", **selector(pool="b"), "ratioModel": {"XYZ": {"baseRatio": 2}}}]},
        "resource-amplification-config": {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5, "memory": 1.25},
                                          "nodeConfigs": [
            {"name": "b", **selector(pool="b"), "resourceAmplificationRatio": {"cpu": 2, "example.com/x": 3}},
            {"name": "c", **selector(pool="c"), "enable": False},
            {"name": "low", **selector(tier="tin"), "resourceAmplificationRatio": {"cpu": 0.5}}]}}},
    "default-ratio": {"config": {
        "colocation-config": {**on, "memoryCalculatePolicy": "request", "midReclaimMode": "static",
                              "midStaticCPUReservedPercent": 25, "midStaticMemoryReservedPercent": 10, "midCPUThresholdPercent": 20},
        "cpu-normalization-config": {"enable": True, "defaultRatio": 1.3, "ratioModel": MODELS}}},
    "overlaps": {"config": {
        "colocation-config": {**on, "nodeConfigs": [
            {"name": "nil", "cpuReclaimThresholdPercent": 1}, {"name": "bad", **expression("pool", "Near", "a"), "cpuReclaimThresholdPercent": 2},
            {"name": "one", **selector(pool="a"), "cpuReclaimThresholdPercent": 30},
            {"name": "two", **selector(pool="a"), "cpuReclaimThresholdPercent": 40},
            {"name": "invalid", **selector(pool="b"), "degradeTimeMinutes": 0, "cpuReclaimThresholdPercent": 10},
            {"name": "all", "nodeSelector": {}, "cpuReclaimThresholdPercent": 55}]},
        "system-config": {"clusterStrategy": {"totalNetworkBandwidth": "25G"},
                          "nodeStrategies": [{"name": "all", "nodeSelector": {}, "minFreeKbytesFactor": 50}]}}},
    "any-case": {"config": {"colocation-config": '{"Enable":true,"ResourceDiffThreshold":0.000001,"UPDATETIMETHRESHOLDSECONDS":1,'
                                                 '"CpuReclaimThresholdPercent":42,"NodeConfigs":[{"Name":"a","NodeSelector":'
                                                 '{"MatchLabels":{"pool":"a"}},"MEMORYreclaimthresholdpercent":33}]}',
                            "resource-threshold-config": '{"ClusterStrategy":{"Enable":true,"CPUSuppressThresholdPercent":55}}',
                            "cpu-burst-config": '{"clusterStrategy":{"Policy":"cpuBurstOnly"},"nodestrategies":[]}'}},
    "unreadable": {"config": {"colocation-config": {**on, "cpuReclaimThresholdPercent": "65"},
                              "resource-threshold-config": "{", "resource-qos-config": "[]", "cpu-burst-config": "null",
                              "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 1.5}},
                              "host-application-config": "", "cpu-normalization-config": '"x"',
                              "resource-amplification-config": {"resourceAmplificationRatio": {"cpu": "1.5"}}}},
    "invalid": {"config": {"colocation-config": {**on, "degradeTimeMinutes": -1},
                           "resource-threshold-config": {"clusterStrategy": {"cpuSuppressPolicy": "guess", "unknownField": 1}},
                           "unknown-config": "x", "system-config": {"clusterStrategy": {"memcgReapBackGround": 7}}}},
    "refused": {"config": {"colocation-config": on,
                           "resource-threshold-config": {"clusterStrategy": {"cpuSuppressThresholdPercent": 650}},
                           "cpu-burst-config": {"clusterStrategy": {"policy": "none", "cpuBurstPercent": 70}}}},
    "above-all": {"config": {"colocation-config": {**on, "cpuReclaimThresholdPercent": 300, "memoryReclaimThresholdPercent": 120}}},
    "off": {"config": {"colocation-config": {**on, "enable": False, "nodeConfigs": [{"name": "a", **selector(pool="a"), "enable": True}]},
                       "resource-amplification-config": {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}}}},
    "nodes-change": {"config": {"colocation-config": {**on, "nodeConfigs": [
        {"name": "a", **selector(pool="a"), "cpuReclaimThresholdPercent": 80}]}}, "changes": [
            ("label", "pool-b-tin", {"pool": "a"}), ("label", "pool-a-tin", {"pool": None}),
            ("annotate", "reservation-0", {"node.koordinator.sh/reservation": None}),
            ("annotate", "third-batch", {"node.koordinator.sh/thirdPartyAllocations": None}),
            ("annotate", "third-two", {"node.koordinator.sh/thirdPartyAllocations":
                                       '{"allocations":[{"name":"p","priority":"koord-batch","resources":{"kubernetes.io/batch-cpu":"1"}}]}'}),
            ("delete", "Node", "size-1-1g"), ("delete", "Device", "device-gpu-two"), ("delete", "Device", "device-gpu-and-rdma"),
            ("sick", "device-gpu-nvidia"), ("delete", "NodeMetric", "metric-aggregated"), ("delete", "NodeSLO", "slo-empty"),
            ("delete", "NodeResourceTopology", "numa-2"), ("delete", "Pod", "pods-many-3"),
            ("status", "kube-reserved", {"allocatable": {"cpu": "20"}}), ("label", "cordoned", {"pool": None})]},
    "deleted": {"config": None},
    "emptied": {"config": {}},
    "again": {"config": {"colocation-config": on}},
}


def data(config):
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
