use super::*;
use serde_json::json;

/// Returns a rule. Each entry of `classes` defines whether the class is enabled, whether it is idle, and
/// whether it is an expeller.
fn rule(policy: &str, classes: [(bool, i64, bool); 3]) -> CoreSched {
    let class = |(enable, idle, expeller): (bool, i64, bool)| json!({"cpuQOS": {"enable": enable, "schedIdle": idle, "coreExpeller": expeller}});
    let [lsr, ls, be] = classes.map(class);
    let strategy = json!({"policies": {"cpuPolicy": policy},
        "lsrClass": lsr, "lsClass": ls, "beClass": be});
    CoreSched::from_strategy(&serde_json::from_value(strategy).unwrap())
}

fn enabled() -> CoreSched {
    rule(
        "coreSched",
        [(true, 0, true), (true, 0, true), (true, 0, false)],
    )
}

fn desired_cookie(
    rule: &CoreSched,
    qos: &str,
    kube: KubeQos,
    group: &str,
    policy: PodPolicy,
) -> CookieTarget {
    rule.desired_cookie(CoreSchedPod {
        qos: QosClass::from_name(qos),
        kube,
        group,
        policy,
        uid: "xxx",
    })
}

#[test]
fn groups_of_pods() {
    use KubeQos::{BestEffort, Burstable, Guaranteed};
    use PodPolicy::{Exclusive, Group, None as Off};
    let on = enabled();
    let off = rule("groupIdentity", [(true, 0, true); 3]);
    let shared = rule(
        "coreSched",
        [(false, 0, false), (true, 0, false), (true, 1, false)],
    );
    for (rule, qos, kube, group, policy, want) in [
        (
            &on,
            "LS",
            BestEffort,
            "group-xxx",
            Group,
            Some("group-xxx-expeller"),
        ),
        (&on, "BE", BestEffort, "", Group, Some("")),
        (&on, "", Burstable, "", Group, Some("-expeller")),
        (&on, "LS", BestEffort, "", Exclusive, Some("xxx-expeller")),
        (&on, "LS", Guaranteed, "", Off, None),
        (&on, "LS", Guaranteed, "g", Group, Some("g-expeller")),
        (&off, "", Burstable, "group-xxx", Group, None),
        (&off, "BE", BestEffort, "group-xxx", Group, None),
        (&shared, "LS", Burstable, "", Group, Some("")),
        (&shared, "LSR", Guaranteed, "", Group, None),
        // Without a label, Guaranteed pods use the class LS if LSR is disabled.
        (&shared, "", Guaranteed, "g", Group, Some("g")),
    ] {
        let want = want.map_or(CookieTarget::Neutral, |name| {
            CookieTarget::Group(name.to_owned())
        });
        assert_eq!(
            desired_cookie(rule, qos, kube, group, policy),
            want,
            "{qos} {kube} {group} {policy:?}"
        );
    }
    assert_eq!(
        desired_cookie(&on, "SYSTEM", Guaranteed, "g", Group),
        CookieTarget::Untouched
    );
}

#[test]
fn rules_of_nodes() {
    use KubeQos::{BestEffort, Burstable, Guaranteed};
    let idle = |rule: &CoreSched| {
        [Guaranteed, Burstable, BestEffort].map(|kube| rule.is_idle(QosClass::None, kube))
    };
    for (rule, on, idles) in [
        (rule("", [(false, 0, false); 3]), false, [false; 3]),
        (enabled(), true, [false; 3]),
        (
            rule(
                "coreSched",
                [(false, 0, false), (true, 0, true), (true, 1, false)],
            ),
            true,
            [false, false, true],
        ),
        (
            rule(
                "coreSched",
                [(true, 0, true), (true, 0, true), (true, 1, false)],
            ),
            true,
            [false, false, true],
        ),
        (
            rule("groupIdentity", [(true, 1, true); 3]),
            false,
            [false; 3],
        ),
    ] {
        assert_eq!((rule.is_enabled(), idle(&rule)), (on, idles), "{rule:?}");
    }
    let be = rule(
        "coreSched",
        [(true, 0, true), (true, 0, true), (true, 1, false)],
    );
    assert!(be.is_idle(QosClass::Be, Burstable));
    assert!(!be.is_idle(QosClass::System, BestEffort));
}

/// A kernel that executes the actions.
#[derive(Default)]
struct Kernel {
    cookies: std::collections::BTreeMap<u32, u64>,
    made: u64,
}

impl Kernel {
    fn with(cookies: &[(u32, u64)]) -> Self {
        Self {
            cookies: cookies.iter().copied().collect(),
            made: 100,
        }
    }

    fn members(&self, wanted: &CookieTarget, pids: &[u32]) -> CookieMembers {
        let task = |pid: &u32| {
            let cookie = *self.cookies.get(pid)?;
            Some(Task { pid: *pid, cookie })
        };
        CookieMembers {
            target: wanted.clone(),
            tasks: pids.iter().filter_map(task).collect(),
        }
    }

    fn run(&mut self, actions: &[Action]) {
        for action in actions {
            let (pid, cookie) = match *action {
                Action::Create { pid } => {
                    self.made += 1;
                    (pid, self.made)
                }
                Action::Share { from, to } => (to, self.cookies[&from]),
                Action::Clear { pid } => (pid, 0),
            };
            self.cookies.insert(pid, cookie);
        }
    }

    /// Runs a round for containers, given as their wanted cookie and their processes; returns the number
    /// of actions.
    fn round(&mut self, cookies: &mut Cookies, containers: &[(&CookieTarget, &[u32])]) -> usize {
        let members: Vec<_> = containers
            .iter()
            .map(|(wanted, pids)| self.members(wanted, pids))
            .collect();
        let actions = cookies.plan(&members);
        self.run(&actions);
        actions.len()
    }

    fn cookies_of(&self, pids: &[u32]) -> Vec<u64> {
        pids.iter().map(|pid| self.cookies[pid]).collect()
    }
}

fn group(name: &str) -> CookieTarget {
    CookieTarget::Group(name.to_owned())
}

#[test]
fn new_group_gets_one_lasting_cookie() {
    let (mut kernel, mut cookies) = (Kernel::with(&[(1, 0), (2, 0), (3, 0)]), Cookies::default());
    let (a, b) = (group("a"), group("b"));
    let containers: [(&CookieTarget, &[u32]); 2] = [(&a, &[1, 2]), (&b, &[3])];
    assert_eq!(kernel.round(&mut cookies, &containers), 3);
    assert_eq!(kernel.cookies_of(&[1, 2, 3]), [101, 101, 102]);
    assert_eq!(kernel.round(&mut cookies, &containers), 0);
    assert_eq!(
        (cookies.cookie("a"), cookies.cookie("b")),
        (Some(101), Some(102))
    );

    // A process that started later, and a second pod of the group.
    kernel.cookies.extend([(4, 0), (5, 0)]);
    let later_containers: [(&CookieTarget, &[u32]); 3] = [(&a, &[1, 2, 4]), (&b, &[3]), (&a, &[5])];
    assert_eq!(kernel.round(&mut cookies, &later_containers), 2);
    assert_eq!(kernel.cookies_of(&[4, 5]), [101, 101]);
}

#[test]
fn group_without_live_holder_gets_new_cookie() {
    let (mut kernel, mut cookies) = (Kernel::with(&[(1, 0)]), Cookies::default());
    let a = group("a");
    kernel.round(&mut cookies, &[(&a, &[1])]);
    kernel.round(&mut cookies, &[(&a, &[1])]);
    kernel.cookies.remove(&1);
    kernel.cookies.insert(2, 0);
    kernel.round(&mut cookies, &[(&a, &[1, 2])]);
    assert_eq!(kernel.cookies_of(&[2]), [102]);
}

#[test]
fn pod_with_changed_group_gets_other_cookie() {
    let (mut kernel, mut cookies) = (Kernel::with(&[(1, 0), (2, 0)]), Cookies::default());
    let (a, b) = (group("a"), group("b"));
    for _ in 0..2 {
        kernel.round(&mut cookies, &[(&a, &[1]), (&a, &[2])]);
    }
    assert_eq!(kernel.cookies_of(&[1, 2]), [101, 101]);
    kernel.round(&mut cookies, &[(&a, &[1]), (&b, &[2])]);
    assert_eq!(kernel.cookies_of(&[1, 2]), [101, 102]);
    // Even when it is listed first, and when all processes end.
    kernel.round(&mut cookies, &[(&b, &[1]), (&a, &[2])]);
    kernel.round(&mut cookies, &[(&b, &[1]), (&a, &[2])]);
    let now = kernel.cookies_of(&[1, 2]);
    assert!(now[0] != now[1] && !now.contains(&0), "{now:?}");
}

#[test]
fn cookies_from_before_a_restart_are_kept() {
    let mut kernel = Kernel::with(&[(1, 7), (2, 7), (3, 0), (4, 8), (5, 9)]);
    let mut cookies = Cookies::default();
    let (a, b) = (group("a"), group("b"));
    // Several cookies in one group: the first stays. That of group b is its own.
    let containers: [(&CookieTarget, &[u32]); 3] = [(&a, &[1, 2, 3]), (&b, &[4]), (&a, &[5])];
    assert_eq!(kernel.round(&mut cookies, &containers), 2);
    assert_eq!(kernel.cookies_of(&[1, 2, 3, 4, 5]), [7, 7, 7, 8, 7]);
}

#[test]
fn one_cookie_in_two_groups_is_split() {
    let mut kernel = Kernel::with(&[(1, 7), (2, 7), (3, 7)]);
    let mut cookies = Cookies::default();
    let (a, b) = (group("a"), group("b"));
    for _ in 0..2 {
        kernel.round(&mut cookies, &[(&a, &[1]), (&b, &[2, 3])]);
    }
    assert_eq!(kernel.cookies_of(&[1, 2, 3]), [7, 101, 101]);
}

#[test]
fn disabled_pods_lose_our_cookies_only() {
    let (mut kernel, mut cookies) = (Kernel::with(&[(1, 0), (2, 0), (3, 6)]), Cookies::default());
    let a = group("a");
    let system: (&CookieTarget, &[u32]) = (&CookieTarget::Untouched, &[3]);
    for _ in 0..2 {
        kernel.round(&mut cookies, &[(&a, &[1]), (&a, &[2]), system]);
    }
    // The workload of another pod created its own cookie in the meantime.
    kernel.cookies.insert(4, 55);
    let neutral = CookieTarget::Neutral;
    kernel.round(
        &mut cookies,
        &[(&neutral, &[1]), (&a, &[2]), (&neutral, &[4]), system],
    );
    assert_eq!(kernel.cookies_of(&[1, 2, 3, 4]), [0, 101, 6, 55]);
    kernel.round(&mut cookies, &[(&neutral, &[1]), (&neutral, &[2]), system]);
    assert_eq!(kernel.cookies_of(&[1, 2, 3]), [0, 0, 6]);
}

#[test]
fn failed_copy_does_not_mix_groups() {
    let (mut kernel, mut cookies) = (Kernel::with(&[(1, 7), (2, 7)]), Cookies::default());
    let (a, b) = (group("a"), group("b"));
    kernel.round(&mut cookies, &[(&a, &[1, 2])]);
    // All processes of b have a's cookie: this round creates the new one, and copies follow in the next.
    let members = [
        kernel.members(&a, &[1]),
        CookieMembers {
            target: b,
            tasks: vec![Task { pid: 2, cookie: 7 }, Task { pid: 3, cookie: 7 }],
        },
    ];
    assert_eq!(cookies.plan(&members), [Action::Create { pid: 2 }]);
}
