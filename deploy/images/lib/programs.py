"""The programs: their packages, and what each needs around it."""

from dataclasses import dataclass, field

# The user of every program that the kernel does not require to be root: the manifests name it, too.
USER = 65532


@dataclass(frozen=True)
class Program:
    name: str
    package: str
    title: str
    profile: str = "release"
    root: bool = False
    image: bool = True
    # Libraries that the program opens while it runs need these, which it is not linked with.
    opens: tuple = field(default=())
    zones: bool = False

    @property
    def user(self) -> str:
        return "0:0" if self.root else f"{USER}:{USER}"


PROGRAMS = [
    Program(
        "koord",
        "koord",
        "koord: a whole cluster in one process, and the commands of all programs, such as topology-exporter",
        # CronJobs of `koord up` may have a time zone.
        zones=True,
    ),
    Program("koord-descheduler", "koord-descheduler-bin", "koord's descheduler: moves pods off overloaded nodes"),
    Program("koord-manager", "koord-manager-bin", "koord's controllers and webhooks of co-location"),
    Program(
        "koord-runtime-proxy",
        "koord-runtime-proxy-bin",
        "koord's CRI proxy between kubelet and container runtime",
        root=True,
    ),
    Program("koord-scheduler", "koord-scheduler-bin", "koord's scheduler, which knows the usage of nodes"),
    Program("koordctl", "koordctl", "koord's commands for any cluster", image=False),
    Program(
        "koordlet",
        "koordlet-bin",
        "koord's node agent: measures the node, reports it and enforces QoS",
        profile="node",
        root=True,
        # NVIDIA's libnvidia-ml.so.1 (--nvml-library) is linked with these.
        opens=("libpthread.so.0", "libdl.so.2", "librt.so.1"),
    ),
]
