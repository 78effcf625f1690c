use super::*;
use koord_api::PriorityClass;
use koord_api::slo::CgroupPath as AppPath;
use koord_host::Version;
use koord_host::fake::Tree;
use koord_host::root::Controller;

fn layout(driver: Driver, root: &str) -> Layout {
    Layout::new(driver, CgroupPath::new(root).unwrap())
}

/// Driver, cgroupRoot, and the groups of all pods, of both other classes, of a pod of each class and of a
/// container of `cri-containerd`, as the kubelet's cgroup manager and the runtimes name them.
const NAMES: [(Driver, &str, [&str; 6]); 5] = [
    (
        Driver::Cgroupfs,
        "",
        [
            "kubepods",
            "kubepods/burstable",
            "kubepods/besteffort",
            "kubepods/poda-1",
            "kubepods/burstable/poda-1",
            "kubepods/besteffort/poda-1/c0",
        ],
    ),
    (
        Driver::Systemd,
        "",
        [
            "kubepods.slice",
            "kubepods.slice/kubepods-burstable.slice",
            "kubepods.slice/kubepods-besteffort.slice",
            "kubepods.slice/kubepods-poda_1.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_1.slice/cri-containerd-c0.scope",
        ],
    ),
    // kind, with either driver.
    (
        Driver::Cgroupfs,
        "kubelet",
        [
            "kubelet/kubepods",
            "kubelet/kubepods/burstable",
            "kubelet/kubepods/besteffort",
            "kubelet/kubepods/poda-1",
            "kubelet/kubepods/burstable/poda-1",
            "kubelet/kubepods/besteffort/poda-1/c0",
        ],
    ),
    (
        Driver::Systemd,
        "kubelet",
        [
            "kubelet.slice/kubelet-kubepods.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-poda_1.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-poda_1.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-poda_1.slice/cri-containerd-c0.scope",
        ],
    ),
    (
        Driver::Systemd,
        "my-own/nodes.slice",
        [
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice",
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice/my_own-nodes-kubepods-burstable.slice",
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice/my_own-nodes-kubepods-besteffort.slice",
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice/my_own-nodes-kubepods-poda_1.slice",
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice/my_own-nodes-kubepods-burstable.slice/my_own-nodes-kubepods-burstable-poda_1.slice",
            "my_own.slice/my_own-nodes.slice/my_own-nodes-kubepods.slice/my_own-nodes-kubepods-besteffort.slice/my_own-nodes-kubepods-besteffort-poda_1.slice/cri-containerd-c0.scope",
        ],
    ),
];

#[test]
fn paths_of_both_drivers_below_any_cgroup_root() {
    use KubeQos::{BestEffort, Burstable, Guaranteed};
    for (driver, root, want) in NAMES {
        let layout = layout(driver, root);
        let best_effort = layout.pod(BestEffort, "a-1").unwrap();
        let got = [
            layout.qos(Guaranteed).unwrap(),
            layout.qos(Burstable).unwrap(),
            layout.qos(BestEffort).unwrap(),
            layout.pod(Guaranteed, "a-1").unwrap(),
            layout.pod(Burstable, "a-1").unwrap(),
            layout.container(&best_effort, "containerd://c0").unwrap(),
        ];
        assert_eq!(got.each_ref().map(CgroupPath::as_str), want);
        for pod in [&got[3], &got[4], &best_effort] {
            assert_eq!(layout.pod_uid(pod.name()).as_deref(), Some("a-1"), "{pod}");
        }
        assert_eq!(layout.pod_uid(got[1].name()), None);
        assert_eq!(layout.container_hash(got[5].name()), Some("c0"));
    }
}

/// The files are at the kernel's paths for every driver and cgroup version.
#[test]
fn files_of_all_four_combinations() {
    for (tree, version) in [
        (Tree::hybrid("0-1").unwrap(), Version::V1),
        (Tree::v2("0-1").unwrap(), Version::V2),
    ] {
        assert_eq!(tree.root().version(), version);
        for (driver, root, _) in NAMES {
            let layout = layout(driver, root);
            let pod = layout.pod(KubeQos::Burstable, "a-1").unwrap();
            let group = layout.container(&pod, "containerd://c0").unwrap();
            tree.group(group.as_str()).unwrap();
            let file = tree.root().cgroup(&group).dir(Controller::Cpu).unwrap();
            assert!(file.is_dir(), "{}", file.display());
            let cgroup = &tree.root().dirs().cgroup;
            let below = file.strip_prefix(cgroup).unwrap();
            let top = match version {
                Version::V1 => below.components().skip(1).collect(),
                Version::V2 => below.to_owned(),
            };
            assert_eq!(top.to_str(), Some(group.as_str()));
        }
    }
}

/// Upstream's tables of container directories: prefixes by runtime, and back.
#[test]
fn containers_by_runtime() {
    let systemd = layout(Driver::Systemd, "");
    let pod = systemd.pod(KubeQos::BestEffort, "u").unwrap();
    for (id, name) in [
        ("docker://d", "docker-d.scope"),
        ("containerd://d", "cri-containerd-d.scope"),
        ("cri-o://d", "crio-d.scope"),
        ("pouch://d", "pouch-d.scope"),
    ] {
        let group = systemd.container(&pod, id).unwrap();
        assert_eq!(group.name(), name);
        assert_eq!(systemd.container_hash(name), Some("d"));
        let cgroupfs = Layout::default();
        assert_eq!(cgroupfs.container(&pod, id).unwrap().name(), "d");
    }
    for bad in ["c0", "containerd://", "containerd://../x", "", "://"] {
        assert!(systemd.container(&pod, bad).is_err(), "{bad}");
    }
    assert_eq!(systemd.container_hash("libpod-d.scope"), Some("d"));
    for dir in ["crio-conmon-d.scope", "libpod-conmon-d.scope"] {
        assert_eq!(systemd.container_hash(dir), None, "{dir}");
    }
    assert_eq!(Layout::default().container_hash("crio-conmon-d"), None);
    for dir in ["", ".scope", "x.scope", "docker-.scope", "init.scope"] {
        assert_eq!(systemd.container_hash(dir), None, "{dir}");
    }
    assert_eq!(Layout::default().container_hash("d"), Some("d"));
    for bad in ["../x", "", "a/b"] {
        assert!(systemd.pod(KubeQos::BestEffort, bad).is_err(), "{bad}");
    }
}

/// Upstream's table of sandbox ids: one child that is no known container.
#[test]
fn the_sandbox_is_the_one_that_is_left() {
    for driver in [Driver::Cgroupfs, Driver::Systemd] {
        let layout = layout(driver, "");
        let pod = layout.pod(KubeQos::Burstable, "u").unwrap();
        let group = |hash: &str| {
            layout
                .container(&pod, &format!("containerd://{hash}"))
                .unwrap()
        };
        let sandbox_hash = |hashes: &[&str]| {
            let children: Vec<_> = hashes.iter().map(|hash| group(hash)).collect();
            let sandbox = layout.sandbox(&children, |hash| hash.starts_with('c'));
            sandbox.map(|group| layout.container_hash(group.name()).unwrap().to_owned())
        };
        assert_eq!(sandbox_hash(&["c1", "s", "c2"]).as_deref(), Some("s"));
        assert_eq!(sandbox_hash(&["s"]).as_deref(), Some("s"));
        assert_eq!(sandbox_hash(&["c1", "s", "t"]), None);
        assert_eq!(sandbox_hash(&["c1"]), None);
        assert_eq!(sandbox_hash(&[]), None);
    }
}

/// Upstream's table of host application paths.
#[test]
fn host_applications() {
    let app = |name: &str, qos, base: Option<&str>| HostApp {
        name: name.to_owned(),
        priority: PriorityClass::Prod,
        qos,
        path: base.map(|base| AppPath {
            base: Some(CgroupBase::from(base)),
            parent_dir: "host-app".to_owned(),
            relative_path: "test-app/".to_owned(),
        }),
    };
    let (ls, be) = (QosClass::Ls, QosClass::Be);
    for (app, cgroupfs, systemd) in [
        (
            app("a", ls, None),
            "host-latency-sensitive/a",
            "host-latency-sensitive/a",
        ),
        (
            app("a", be, None),
            "host-best-effort/a",
            "host-best-effort/a",
        ),
        (
            app("a", ls, Some("CgroupRoot")),
            "host-app/test-app",
            "host-app/test-app",
        ),
        (
            app("a", ls, Some("")),
            "host-app/test-app",
            "host-app/test-app",
        ),
        (
            app("a", ls, Some("Kubepods")),
            "kubepods/host-app/test-app",
            "kubepods.slice/host-app/test-app",
        ),
        (
            app("a", ls, Some("KubepodsBurstable")),
            "kubepods/burstable/host-app/test-app",
            "kubepods.slice/kubepods-burstable.slice/host-app/test-app",
        ),
        (
            app("a", be, Some("KubepodsBesteffort")),
            "kubepods/besteffort/host-app/test-app",
            "kubepods.slice/kubepods-besteffort.slice/host-app/test-app",
        ),
    ] {
        for (driver, want) in [(Driver::Cgroupfs, cgroupfs), (Driver::Systemd, systemd)] {
            let path = layout(driver, "").host_app(&app).unwrap();
            assert_eq!(path.as_str(), want);
        }
    }
    for bad in [
        app("a", QosClass::Lsr, None),
        app("", ls, None),
        app("../a", ls, None),
        app("a", ls, Some("Elsewhere")),
    ] {
        assert!(Layout::default().host_app(&bad).is_err(), "{bad:?}");
    }
    let mut leaves = app("a", ls, Some("Kubepods"));
    leaves.path.as_mut().unwrap().parent_dir = "../..".to_owned();
    assert!(Layout::default().host_app(&leaves).is_err());
    assert_eq!("systemd".parse(), Ok(Driver::Systemd));
    assert!(
        "openrc"
            .parse::<Driver>()
            .unwrap_err()
            .to_string()
            .contains("openrc")
    );
}
