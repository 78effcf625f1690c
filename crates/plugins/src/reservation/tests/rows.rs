//! Upstream's tables of matching and fit, on the plugin alone.

use super::*;
use koord_scheduler::framework::{BoxedPlugin, Overlay};

/// The plugin outside of the engine that tracks node `n`.
pub(super) struct PluginBench {
    pub(super) engine: Engine,
    pub(super) plugin: BoxedPlugin,
    now: Timestamp,
    /// Messages of the problems that the plugin reported.
    messages: Vec<String>,
}

pub(super) fn list(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        let (name, amount) = token.split_once('=').unwrap();
        let name = match name {
            "batch-cpu" | "batch-memory" => format!("kubernetes.io/{name}"),
            name => name.to_owned(),
        };
        out[name] = json!(amount);
    }
    out
}

pub(super) fn pod_value(name: &str, requests: &str, change: Value) -> Value {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"}},
        "spec": {"schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": list(requests)}}]}
    });
    merge(&mut value, &change);
    value
}

impl PluginBench {
    pub(super) fn new(allocatable: &str) -> Self {
        Self::with(allocatable, json!({}))
    }

    pub(super) fn with(allocatable: &str, args: Value) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut engine = engine(&args, &[]);
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "n"}, "status": {"allocatable": list(allocatable)}
        }))
        .unwrap();
        engine.node_applied(Arc::new(node), now);
        Self {
            engine,
            plugin: build(Some(&args), &BuildContext::default()).unwrap(),
            now,
            messages: Vec::new(),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        self.engine.cluster().view(self.now)
    }

    pub(super) fn row(&self) -> NodeIndex {
        self.engine.cluster().nodes().find("n").unwrap()
    }

    /// Adds a reservation for pods of app `web` that is available on the node.
    fn open(self, name: &str, policy: &str, requests: &str) -> Self {
        let open = json!({"status": {"phase": "Available", "nodeName": "n", "allocatable": list(requests)}});
        self.reservation(name, policy, requests, open)
    }

    pub(super) fn reservation(
        mut self,
        name: &str,
        policy: &str,
        requests: &str,
        change: Value,
    ) -> Self {
        let containers = json!([{"name": "c", "resources": {"requests": list(requests)}}]);
        let mut value = json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": name, "uid": name},
            "spec": {"ttl": "24h", "allocateOnce": false, "allocatePolicy": policy,
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                "template": {"spec": {"schedulerName": "koord-scheduler", "containers": containers}}}
        });
        if policy.is_empty() {
            value["spec"]
                .as_object_mut()
                .unwrap()
                .remove("allocatePolicy");
        }
        merge(&mut value, &change);
        let new: Reservation = serde_json::from_value(value).unwrap();
        let change = ObjectChange {
            kind: RESERVATIONS,
            action: Action::ADD,
            old: None,
            new: Arc::new(new),
        };
        self.engine.object_changed(&change, self.now);
        let mut fx = Effects::default();
        let mut plugin = std::mem::replace(&mut self.plugin, placeholder());
        plugin
            .object_events()
            .unwrap()
            .on_object(&change, self.view(), &mut fx);
        self.plugin = plugin;
        self.messages
            .extend(fx.problems.into_iter().map(|problem| problem.message));
        self
    }

    /// Adds a pod on the node, in reservation `of` unless that is empty.
    pub(super) fn pod_in(self, name: &str, requests: &str, of: &str) -> Self {
        let mut change = json!({});
        if !of.is_empty() {
            let text = json!({"name": of, "uid": of}).to_string();
            change["metadata"] = json!({"annotations": {annotations::RESERVATION_ALLOCATED: text}});
        }
        self.on_node(name, requests, change)
    }

    /// Adds a pod on the node; `change` is merged into it.
    pub(super) fn on_node(mut self, name: &str, requests: &str, change: Value) -> Self {
        let mut value = json!({"spec": {"nodeName": "n"}});
        merge(&mut value, &change);
        let pod = serde_json::from_value(pod_value(name, requests, value)).unwrap();
        self.engine.pod_applied(Arc::new(pod), self.now);
        self
    }

    /// Passes the pods on the node to the plugin.
    pub(super) fn sync_plugin(mut self) -> Self {
        let mut plugin = std::mem::replace(&mut self.plugin, placeholder());
        let (row, mut fx) = (self.row(), Effects::default());
        for pod in self.engine.cluster().nodes().booked(row) {
            plugin
                .pod_events()
                .unwrap()
                .on_assigned(pod, row, self.view(), &mut fx);
        }
        self.plugin = plugin;
        self
    }

    fn cycle_of<T>(&self, pod: Value, look: impl FnOnce(&Cycle<'_>) -> T) -> T {
        let pod = serde_json::from_value(pod).unwrap();
        let pod = Arc::new(PodInfo::new(Arc::new(pod), self.engine.cluster().resources()).unwrap());
        look(&Cycle::new(&pod, self.view()))
    }

    /// Returns the filter's verdict with the pod's reservations and these victims removed.
    fn judge(&self, pod: Value, victims: &[&str]) -> String {
        self.cycle_of(pod, |cycle| self.judge_in(cycle, victims))
    }

    fn judge_in(&self, cycle: &Cycle<'_>, victims: &[&str]) -> String {
        let row = self.row();
        let state = match self.plugin.pre_filter().unwrap().pre_filter(cycle) {
            PreFilterResult::Ready { state, nodes } => {
                if nodes.is_some_and(|nodes| !nodes.contains(&row)) {
                    return "elsewhere".to_owned();
                }
                state
            }
            PreFilterResult::Reject(rejection) => return rejection.message(),
            PreFilterResult::Skip => State::default(),
        };
        let mut removed = Vec::new();
        self.plugin
            .release()
            .unwrap()
            .released(cycle, &state, row, &mut removed);
        let pods = self.engine.cluster().nodes().booked(row);
        removed.extend(pods.filter(|pod| victims.contains(&&*pod.name)).cloned());
        let cycle = Cycle {
            overlay: Overlay {
                removed: &removed,
                added: &[],
            },
            ..*cycle
        };
        match self.plugin.filter().unwrap().filter(&cycle, &state, row) {
            Ok(()) => "fits".to_owned(),
            Err(rejection) => rejection.message(),
        }
    }

    /// Returns the score of the node, and the reservation that the pod would use.
    fn choice(&self, pod: Value) -> (i64, String) {
        self.cycle_of(pod, |cycle| {
            let row = self.row();
            let PreFilterResult::Ready { state, .. } =
                self.plugin.pre_filter().unwrap().pre_filter(cycle)
            else {
                return (0, "refused".to_owned());
            };
            let mut released = Vec::new();
            self.plugin
                .release()
                .unwrap()
                .released(cycle, &state, row, &mut released);
            let nominee = self
                .plugin
                .release()
                .unwrap()
                .nominate(cycle, &state, row, &released);
            let score = match self.plugin.pre_score().unwrap().pre_score(cycle) {
                PreScoreResult::Skip => 0,
                PreScoreResult::Ready(state) => {
                    let overlay = Overlay {
                        removed: &released,
                        added: &[],
                    };
                    let cycle = Cycle { overlay, ..*cycle };
                    self.plugin.score().unwrap().score(&cycle, &state, row)
                }
            };
            (
                score,
                nominee.map_or("-".to_owned(), |pod| pod.uid.to_string()),
            )
        })
    }

    /// Returns the filter's verdict on a reservation that is to be placed.
    pub(super) fn place(&self, name: &str) -> String {
        let pod = self.engine.queued(name).unwrap().clone();
        self.judge_in(&Cycle::new(&pod, self.view()), &[])
    }
}

/// Creates a placeholder for the plugin while it is borrowed.
fn placeholder() -> BoxedPlugin {
    build(None, &BuildContext::default()).unwrap()
}

fn with_affinity(affinity: Value) -> Value {
    json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: affinity.to_string()}}})
}

const ROOM: &str = "cpu=32 memory=32Gi pods=100 batch-cpu=7500 batch-memory=10Gi";
const NO_CPU: &str = "Insufficient cpu by node";
const NO_BATCH: &str = "Insufficient kubernetes.io/batch-cpu by node";
const RESERVED: &str = "Reservation(s) Insufficient cpu";

#[test]
fn pod_fits_reservation_and_node() {
    let any = || with_affinity(json!({}));
    let named = || with_affinity(json!({"name": "r"}));
    let (aligned, restricted) = ("Aligned", "Restricted");
    // Six cores are reserved; `others` is what unrelated pods use.
    let six_reserved = |policy: &str, others: &str| {
        PluginBench::new(ROOM)
            .pod_in("others", others, "")
            .open("r", policy, "cpu=6")
    };
    let note = |cpu: &str| {
        let text = json!({"resources": {"cpu": cpu}}).to_string();
        json!({"metadata": {"annotations": {annotations::NODE_RESERVATION: text}},
            "status": {"phase": "Available", "nodeName": "n"}})
    };
    let aside = PluginBench::new(ROOM)
        .pod_in("others", "cpu=24 memory=24Gi", "")
        .reservation("r", restricted, "cpu=6", note("2"));
    // All six cores are in use, four of them by `big`; unrelated pods use the rest of the node.
    let full = |policy: &str, others: &str| {
        let bench = PluginBench::new(ROOM)
            .pod_in("others", others, "")
            .pod_in("small", "cpu=2", "");
        bench
            .pod_in("odd", "cpu=2", "")
            .open("r", policy, "cpu=6")
            .pod_in("big", "cpu=4", "r")
            .pod_in("two", "cpu=2", "r")
    };
    // Two owners of a core each, which is the maximum number; one core is set aside.
    let two = || {
        let bench = PluginBench::new(ROOM).pod_in("others", "cpu=23 memory=24Gi", "");
        let bench = bench.reservation("r", restricted, "cpu=7 pods=2", note("1"));
        bench.pod_in("a", "cpu=1", "r").pod_in("b", "cpu=1", "r")
    };
    let several = || {
        full(restricted, "cpu=18")
            .open("r1", restricted, "cpu=4")
            .pod_in("one", "cpu=1", "r1")
    };
    let memory = PluginBench::new(ROOM)
        .pod_in("others", "cpu=26", "")
        .pod_in("heap", "memory=32Gi", "")
        .open("r", restricted, "cpu=6")
        .pod_in("big", "cpu=4", "r")
        .pod_in("two", "cpu=2", "r");
    let busy = "cpu=24 memory=24Gi";
    let batch = "cpu=24 memory=24Gi batch-cpu=1500 batch-memory=2Gi";
    let none: &[&str] = &[];
    type Row<'a> = (&'a str, PluginBench, &'a str, Value, &'a [&'a str], &'a str);
    #[rustfmt::skip]
    let rows: Vec<Row<'_>> = vec![
        ("aligned, topped up by the node", six_reserved(aligned, busy), "cpu=8 memory=8Gi", any(), none, "fits"),
        ("aligned, the node is full", six_reserved(aligned, "cpu=26 memory=24Gi"), "cpu=8 memory=8Gi", any(), none,
            NO_CPU),
        ("restricted", six_reserved(restricted, busy), "cpu=6 memory=8Gi", json!({}), none, "fits"),
        ("restricted, required", six_reserved(restricted, busy), "cpu=6 memory=8Gi", any(), none, "fits"),
        ("nothing of it is asked for", six_reserved(restricted, batch), "batch-cpu=6000 batch-memory=8Gi", any(),
            none, "fits"),
        ("more than restricted", six_reserved(restricted, busy), "cpu=8 memory=8Gi", any(), none, RESERVED),
        ("too many owners", two(), "cpu=3", any(), none, "Reservation(s) Too many pods"),
        ("the node lacks the rest", six_reserved(restricted, batch), "batch-cpu=8000 batch-memory=8Gi", any(), none,
            NO_BATCH),
        ("the node lacks the rest, not required", six_reserved(restricted, batch), "batch-cpu=8000 batch-memory=8Gi",
            json!({}), none, NO_BATCH),
        ("some is set aside", aside, "cpu=6 memory=8Gi", any(), none, RESERVED),
        ("an owner makes way", full("", "cpu=20"), "cpu=4", any(), &["big"], "fits"),
        ("an owner and a stranger make way", full("", "cpu=22"), "cpu=4", any(), &["two", "odd"], "fits"),
        ("only an owner makes way", full("", "cpu=22"), "cpu=4", any(), &["two"], NO_CPU),
        ("only a stranger makes way", full("", "cpu=22"), "cpu=4", any(), &["odd"], NO_CPU),
        ("restricted, an owner makes way", full(restricted, "cpu=22"), "cpu=4", any(), &["big"], "fits"),
        ("restricted, strangers make way", full(restricted, "cpu=22"), "cpu=4", any(), &["odd", "small"],
            RESERVED),
        ("two restricted ones, strangers make way", several(), "cpu=4", any(), &["odd", "small"],
            "Reservation(s) Insufficient cpu, Reservation(s) Insufficient cpu"),
        ("restricted, both make way", full(restricted, "cpu=22"), "cpu=4", any(), &["two", "odd"], RESERVED),
        ("restricted, by name, an owner makes way", full(restricted, "cpu=22"), "cpu=4", named(), &["big"],
            "fits"),
        ("restricted, memory comes from a stranger", memory, "cpu=4 memory=4Gi", any(), &["big", "heap"],
            "fits"),
        ("by name, one of the owners makes way", two(), "cpu=3", named(), &["a"], "fits"),
        ("by name, too many owners", two(), "cpu=3", named(), none,
            "Reservation(s) Too many pods, requested: 1, used: 2, capacity: 2"),
        ("by name, some is set aside", two(), "cpu=6", named(), &["a"],
            "Reservation(s) Insufficient cpu, requested: 6000, used: 1000, capacity: 6000"),
    ];
    for (name, bench, asked, change, victims, expected) in rows {
        let got = bench
            .sync_plugin()
            .judge(pod_value("p", asked, change), victims);
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn reservations_find_their_node() {
    let on_template_node = |node: &str| json!({"spec": {"template": {"spec": {"nodeName": node}}}});
    let none = || json!({});
    let required = json!({"metadata": {"labels": {koord_api::labels::RESERVATION_PRE_ALLOCATION_REQUIRED: "true"}},
        "spec": {"preAllocation": true}});
    let pre = || json!({"spec": {"preAllocation": true}});
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "100"}}}]);
    let large =
        json!({"spec": {"preAllocation": true, "template": {"spec": {"containers": containers}}}});
    let (conflict, elsewhere) = (POLICY_CONFLICT, OTHER_NODE);
    #[rustfmt::skip]
    let rows = [
        ("no node asked for", "-", "", none(), "fits"),
        ("this node", "-", "", on_template_node("n"), "fits"),
        ("another node", "-", "", on_template_node("other"), elsewhere),
        ("default next to aligned", "Aligned", "", on_template_node("n"), conflict),
        ("default next to restricted", "Restricted", "", on_template_node("n"), conflict),
        ("aligned next to restricted", "Restricted", "Aligned", none(), "fits"),
        ("restricted next to aligned", "Aligned", "Restricted", none(), "fits"),
        ("pre-allocation without candidates", "Restricted", "Restricted", pre(), "fits"),
        ("pre-allocation without candidates, node too small", "Restricted", "Restricted", large, "fits"),
        ("required pre-allocation", "-", "Restricted", required, crate::reservation::pre_allocation::NO_POD),
    ];
    for (name, there, policy, change, expected) in rows {
        let mut bench = PluginBench::new("cpu=32 memory=64Gi pods=100");
        if there != "-" {
            bench = bench.open("there", there, "cpu=4");
        }
        let bench = bench
            .reservation("r", policy, "cpu=4", change)
            .sync_plugin();
        assert_eq!(bench.place("r"), expected, "{name}");
    }
    // A pod that owns no reservation is not affected.
    let bench = PluginBench::new(ROOM).sync_plugin();
    assert_eq!(bench.judge(pod_value("p", "", json!({})), &[]), "fits");
    // Without a template there is nothing to place.
    let bench = PluginBench::new(ROOM).reservation(
        "r",
        "",
        "cpu=1",
        json!({"spec": {"template": {"spec": null}}}),
    );
    assert!(bench.engine.queued("r").is_none());
    assert!(
        bench.messages[0].contains("spec.template"),
        "{:?}",
        bench.messages
    );
    // The holder of an unknown reservation is rejected.
    let bench = PluginBench::new(ROOM).reservation("r", "", "cpu=1", json!({}));
    let stray = bench.engine.queued("r").unwrap().clone();
    let other = PluginBench::new(ROOM);
    let got = other.judge_in(&Cycle::new(&stray, other.view()), &[]);
    assert!(got.starts_with("cannot get reservation"), "{got}");
}

#[test]
fn upstream_matching() {
    let term = |key: &str, value: &str| {
        let expression = json!({"key": key, "operator": "In", "values": [value]});
        let terms = json!([{"matchExpressions": [expression]}]);
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"reservationSelectorTerms": terms}})
    };
    let tolerating = |mut affinity: Value| {
        affinity["tolerations"] = json!([{"key": "node.kubernetes.io/unschedulable",
            "operator": "Exists", "effect": "NoSchedule"}]);
        affinity
    };
    let exact = |change: Value| {
        let mut change = change;
        let spec = json!({"resourceNames": ["cpu"]}).to_string();
        merge(
            &mut change,
            &json!({"metadata": {"annotations": {annotations::EXACT_MATCH_RESERVATION: spec}}}),
        );
        change
    };
    let ignoring =
        json!({"metadata": {"labels": {koord_api::labels::RESERVATION_IGNORED: "true"}}});
    let open = |label: &str, closed: bool| {
        json!({"metadata": {"labels": {label: "true"}}, "spec": {"unschedulable": closed},
            "status": {"phase": "Available", "nodeName": "n"}})
    };
    #[rustfmt::skip]
    let rows = [
        ("no wish", json!({}), "a"),
        ("by label", with_affinity(term("is-a", "true")), "a"),
        ("by a label of no reservation", with_affinity(term("is-a", "false")), "refused"),
        ("by a label, not exact", exact(with_affinity(term("is-a", "false"))), "refused"),
        ("by name", with_affinity(json!({"name": "a"})), "a"),
        ("by another name", with_affinity(json!({"name": "x"})), "refused"),
        ("by name, not exact", exact(with_affinity(json!({"name": "a"}))), "refused"),
        ("closed", with_affinity(term("is-b", "true")), "refused"),
        ("closed, and tolerated", with_affinity(tolerating(term("is-b", "true"))), "b"),
        ("by selector of no reservation", with_affinity(json!({"reservationSelector": {"is-c": "true"}})), "refused"),
        ("takes no notice", ignoring, "-"),
    ];
    for (name, change, expected) in rows {
        let bench = PluginBench::new("cpu=32 memory=64Gi pods=100")
            .reservation("a", "", "cpu=8 memory=16Gi", open("is-a", false))
            .reservation("b", "", "cpu=8 memory=16Gi", open("is-b", true))
            .sync_plugin();
        let (_, got) = bench.choice(pod_value("p", "cpu=4 memory=8Gi", change));
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn fullest_reservation_is_nominated() {
    let large = |bench: PluginBench| bench.open("large", "", "cpu=4 memory=8Gi");
    let small = |bench: PluginBench| bench.open("small", "", "cpu=2 memory=4Gi");
    let restricted = |bench: PluginBench| bench.open("small", "Restricted", "cpu=2 memory=4Gi");
    let node = || PluginBench::new("cpu=16 memory=128Gi pods=100 ephemeral-storage=100Gi");
    let first = || {
        let order = json!({"metadata": {"labels": {koord_api::labels::RESERVATION_ORDER: "100"}},
            "status": {"phase": "Available", "nodeName": "n"}});
        small(node()).reservation("first", "", "cpu=2 memory=4Gi", order)
    };
    let once = |bench: PluginBench| {
        let once = json!({"spec": {"allocateOnce": true}, "status": {"phase": "Available", "nodeName": "n"}});
        bench
            .reservation("once", "", "cpu=2 memory=4Gi", once)
            .pod_in("owner", "cpu=2 memory=4Gi", "once")
    };
    let used = |bench: PluginBench| restricted(bench).pod_in("owner", "cpu=2 memory=3Gi", "small");
    let ask = "cpu=2 memory=4Gi";
    #[rustfmt::skip]
    let rows = [
        ("none", node(), "", 0, "-"),
        ("asks for nothing", small(node()), "", 0, "-"),
        ("half of it", large(node()), ask, 50, "large"),
        ("used up", used(node()), ask, 0, "-"),
        ("the fuller one", small(large(node())), ask, 100, "small"),
        ("the other is used up", used(large(node())), ask, 50, "large"),
        ("what both have", small(node()), "cpu=2", 50, "small"),
        ("nothing that it has", small(node()), "ephemeral-storage=2Gi", 0, "-"),
        ("may be used once, and was", once(large(node())), "cpu=2", 25, "large"),
    ];
    for (name, bench, asked, score, expected) in rows {
        let got = bench.sync_plugin().choice(pod_value("p", asked, json!({})));
        assert_eq!(got, (score, expected.to_owned()), "{name}");
    }
    let (_, got) = first().sync_plugin().choice(pod_value("p", ask, json!({})));
    assert_eq!(got, "first", "orders come before all scores");
}

#[test]
fn ignored_resources_are_not_checked() {
    let gpu = "example.com/gpu";
    let names = |name: &str| json!({"ignoredResources": [name]});
    let groups = |name: &str| json!({"ignoredResourceGroups": [name]});
    let fits = |args: Value, node: &str, reserved: &str, asked: &str| {
        let bench = PluginBench::with(node, args).pod_in("others", "cpu=4", "");
        let bench = bench.open("r", "Restricted", reserved).sync_plugin();
        bench.judge(pod_value("p", asked, with_affinity(json!({}))), &[])
    };
    let node = "cpu=16 memory=16Gi pods=100 example.com/gpu=1 other.io/fpga=1";
    let full = "Reservation(s) Insufficient example.com/gpu";
    #[rustfmt::skip]
    let rows = [
        ("by name", names(gpu), "fits"),
        ("by group", groups("example.com"), "fits"),
        ("not at all", json!({}), "Insufficient example.com/gpu by node"),
        ("another group", groups("other.io"), "Insufficient example.com/gpu by node"),
    ];
    for (name, args, expected) in rows {
        // The node has one, two are requested; the reservation is of CPU only.
        assert_eq!(
            fits(args, node, "cpu=4", "cpu=1 example.com/gpu=2"),
            expected,
            "{name}, node"
        );
    }
    let both = fits(
        groups("example.com"),
        node,
        "cpu=4",
        "cpu=1 example.com/gpu=2 other.io/fpga=2",
    );
    assert_eq!(both, "Insufficient other.io/fpga by node");
    assert_eq!(
        fits(names(gpu), node, "cpu=4", "cpu=14 example.com/gpu=2"),
        "Insufficient cpu by node, Reservation(s) Insufficient cpu",
        "CPU is never left out"
    );
    let rich = "cpu=16 memory=16Gi pods=100 example.com/gpu=9";
    for (name, args, expected) in [
        ("by name", names(gpu), "fits"),
        ("by group", groups("example.com"), "fits"),
        ("not at all", json!({}), full),
    ] {
        let got = fits(
            args,
            rich,
            "cpu=4 example.com/gpu=2",
            "cpu=1 example.com/gpu=4",
        );
        assert_eq!(got, expected, "{name}, reservation");
    }
}

#[test]
fn conditions_count_reservations_by_reason() {
    use super::super::fit::ReservationCounts;
    use super::super::pod_state::{MismatchReason, PodReservationState};
    let taint = || MismatchReason::Taint("{node.kubernetes.io/unreachable: }".to_owned());
    let side = |name: bool| {
        let change = if name {
            with_affinity(json!({"name": "x"}))
        } else {
            json!({})
        };
        let pod = serde_json::from_value(pod_value("p", "", change)).unwrap();
        let table = koord_model::resources::ResourceTable::new();
        let pod = PodInfo::new(Arc::new(pod), &table).unwrap();
        PodReservationState::new(&pod, vec![1], &table).unwrap()
    };
    const OTHER: &[&str] = &["node(s) didn't match the requested node name"];
    type Judged = Vec<(usize, Result<(), MismatchReason>)>;
    type Row<'a> = (
        &'a str,
        bool,
        bool,
        Judged,
        &'a [(usize, &'a [&'a str])],
        &'a str,
    );
    #[rustfmt::skip]
    let rows: Vec<Row<'_>> = vec![
        ("nothing to say", false, false, vec![], &[], ""),
        ("required", true, false, vec![], &[], "0 Reservation(s) matched owner total"),
        ("closed", false, false, vec![(4, Err(MismatchReason::Unschedulable))], &[],
            "4 Reservation(s) is unschedulable, 4 Reservation(s) matched owner total"),
        ("another name", false, true, vec![(4, Err(MismatchReason::Name))], &[],
            "4 Reservation(s) didn't match the requested reservation name, 4 Reservation(s) matched owner total"),
        ("tainted", false, false, vec![(4, Err(taint()))], &[],
            "4 Reservation(s) had untolerated taint {node.kubernetes.io/unreachable: }, 4 Reservation(s) matched owner total"),
        ("closed or not exact", false, false,
            vec![(1, Err(MismatchReason::Unschedulable)), (4, Err(MismatchReason::Exact))], &[],
            "1 Reservation(s) is unschedulable, 4 Reservation(s) is not exact matched, 5 Reservation(s) matched owner total"),
        ("closed or not wanted", false, false,
            vec![(1, Err(MismatchReason::Unschedulable)), (4, Err(MismatchReason::Affinity))], &[],
            "4 Reservation(s) didn't match affinity rules, 1 Reservation(s) is unschedulable, 5 Reservation(s) matched owner total"),
        ("named, and not exact", false, true, vec![(4, Err(MismatchReason::Name)), (1, Err(MismatchReason::Exact))], &[],
            "1 Reservation(s) exactly matches the requested reservation name, 4 Reservation(s) didn't match the requested reservation name, 1 Reservation(s) is not exact matched, 5 Reservation(s) matched owner total"),
        ("the node refuses", false, false,
            vec![(3, Err(MismatchReason::Affinity)), (1, Err(MismatchReason::Unschedulable)), (2, Ok(()))], &[(2, OTHER)],
            "3 Reservation(s) didn't match affinity rules, 1 Reservation(s) is unschedulable, 2 Reservation(s) for node reason that node(s) didn't match the requested node name, 6 Reservation(s) matched owner total"),
        ("reservations and the node refuse", false, false,
            vec![(1, Err(MismatchReason::Affinity)), (1, Err(MismatchReason::Unschedulable)), (4, Ok(()))],
            &[(2, &["Reservation(s) Insufficient nvidia.com/gpu", "Reservation(s) Insufficient koordinator.sh/gpu-mem-ratio"]), (2, &["Reservation(s) Insufficient cpu", "Insufficient memory"])],
            "1 Reservation(s) didn't match affinity rules, 1 Reservation(s) is unschedulable, 1 Reservation(s) for node reason that Insufficient memory, 6 Reservation(s) matched owner total"),
    ];
    for (name, required, named, found, refused, expected) in rows {
        let mut counts = ReservationCounts::default();
        let side = side(named);
        for (count, checked) in found {
            (0..count).for_each(|_| counts.add(&side, checked.clone()));
        }
        for (usable, reasons) in refused {
            let reasons: Vec<_> = reasons
                .iter()
                .map(|text| (*text).to_owned().into())
                .collect();
            counts.add_rejected(*usable, &reasons);
        }
        assert_eq!(counts.text(required), expected, "{name}");
    }
}
