//! Compares the tree with a plain computation from scratch.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A random step: a quota is changed, or a pod is created, placed or deleted.
#[derive(Debug, Clone)]
enum QuotaStep {
    Set(usize, usize, i64, i64, bool, i64),
    Remove(usize),
    Pod(usize, i64, bool),
    Place(usize),
    Drop(usize),
    Total(i64),
    Ask(usize),
}

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", DEFAULT_QUOTA];

fn steps() -> impl Strategy<Value = Vec<QuotaStep>> {
    let name = 0..NAMES.len();
    let step = prop_oneof![
        4 => (name.clone(), 0..9_usize, 0..60_i64, 0..40_i64, any::<bool>(), 0..5_i64)
            .prop_map(|(n, p, max, min, lend, weight)| QuotaStep::Set(n, p, max, min, lend, weight)),
        1 => name.clone().prop_map(QuotaStep::Remove),
        6 => (name.clone(), 1..30_i64, any::<bool>()).prop_map(|(n, cpu, firm)| QuotaStep::Pod(n, cpu, firm)),
        4 => (0..40_usize).prop_map(QuotaStep::Place),
        3 => (0..40_usize).prop_map(QuotaStep::Drop),
        1 => (0..150_i64).prop_map(QuotaStep::Total),
        3 => name.prop_map(QuotaStep::Ask),
    ];
    proptest::collection::vec(step, 1..60)
}

type Pod = (usize, i64, bool, bool);

/// Computes everything from scratch, in the simplest way.
struct Reference<'a> {
    specs: &'a BTreeMap<usize, QuotaSpec>,
    pods: &'a [Pod],
    total: i64,
    options: Options,
}

impl Reference<'_> {
    fn own(&self, name: usize, pick: impl Fn(&Pod) -> bool) -> i64 {
        let pods = self.pods.iter().filter(|pod| pod.0 == name && pick(pod));
        pods.map(|pod| pod.1).sum()
    }

    /// Returns the positions of the children of the quota named `parent`; the root is the empty name.
    fn children(&self, parent: &str) -> Vec<usize> {
        let of = |at: &&usize| NAMES[**at] != DEFAULT_QUOTA && self.specs[*at].parent == parent;
        self.specs.keys().filter(of).copied().collect()
    }

    /// Returns the requests of the subtree's non-preemptible pods; no maximum limits them.
    fn firm_request(&self, name: usize) -> i64 {
        let children = self.children(NAMES[name]).into_iter();
        let below: i64 = children.map(|child| self.firm_request(child)).sum();
        below + self.own(name, |pod| pod.2)
    }

    fn request(&self, name: usize) -> i64 {
        let children = self.children(NAMES[name]);
        let below: i64 = children
            .into_iter()
            .map(|child| self.request(child).min(self.specs[&child].max.get(CPU)))
            .sum();
        let all = below + self.own(name, |_| true);
        if self.specs[&name].lendable && !self.options.guarantee_used {
            all
        } else {
            all.max(self.specs[&name].min.get(CPU))
        }
    }

    fn used(&self, name: usize, firm: bool) -> i64 {
        let children = self.children(NAMES[name]);
        let below: i64 = children
            .into_iter()
            .map(|child| self.used(child, firm))
            .sum();
        below + self.own(name, |pod| pod.3 && (!firm || pod.2))
    }

    fn guaranteed(&self, name: usize) -> i64 {
        if !self.options.guarantee_used {
            return 0;
        }
        if NAMES[name] == DEFAULT_QUOTA {
            // Only the resources that named quotas list are accounted.
            let named = self.specs.len() > 1;
            return if named { self.used(name, false) } else { 0 };
        }
        let children = self.children(NAMES[name]);
        let below: i64 = children
            .into_iter()
            .map(|child| self.guaranteed(child))
            .sum();
        let allocated = below + self.own(name, |pod| pod.3);
        allocated.max(self.specs[&name].min.get(CPU))
    }

    /// Returns the quotas whose parent does not exist: nothing is divided among them.
    fn orphans(&self) -> Vec<usize> {
        let exists = |name: &str| self.specs.keys().any(|at| NAMES[*at] == name);
        let lost = |spec: &QuotaSpec| !spec.parent.is_empty() && !exists(&spec.parent);
        let all = self.specs.iter().filter(|(_, spec)| lost(spec));
        all.map(|(at, _)| *at).collect()
    }

    /// Returns per quota the runtime quota and the scaled minimum.
    fn all_runtimes(&self, divisible: i64) -> BTreeMap<usize, (i64, i64)> {
        let mut out = BTreeMap::new();
        self.runtimes(
            &self.children(""),
            divisible,
            self.options.scale_min,
            &mut out,
        );
        for orphan in self.orphans() {
            self.runtimes(&[orphan], 0, false, &mut out);
        }
        out
    }

    fn runtimes(
        &self,
        children: &[usize],
        total: i64,
        scale: bool,
        out: &mut BTreeMap<usize, (i64, i64)>,
    ) {
        let sum: i64 = children.iter().map(|c| self.specs[c].min.get(CPU)).sum();
        let mut shares: BTreeMap<usize, i64> = BTreeMap::new();
        let mut mins: BTreeMap<usize, i64> = BTreeMap::new();
        let mut hungry = Vec::new();
        for child in children {
            let spec = &self.specs[child];
            let mut min = spec.min.get(CPU);
            if scale && total < sum {
                min = if total > 0 { total * min / sum } else { 0 };
            }
            mins.insert(*child, min);
            let min = min.max(self.guaranteed(*child));
            let request = self.request(*child).min(spec.max.get(CPU));
            let lends = spec.lendable && !self.options.guarantee_used;
            if request > min {
                hungry.push((*child, request));
            }
            let share = if request > min || !lends {
                min
            } else {
                request
            };
            shares.insert(*child, share);
        }
        let mut remaining = total - shares.values().sum::<i64>();
        while remaining > 0 {
            let weight = |child: &usize| self.specs[child].weight.get(CPU);
            let all: i64 = hungry.iter().map(|(child, _)| weight(child)).sum();
            if all == 0 {
                break;
            }
            let mut parts: Vec<(i64, usize, i64)> = hungry
                .iter()
                .map(|(child, _)| {
                    (
                        remaining * weight(child) % all,
                        *child,
                        remaining * weight(child) / all,
                    )
                })
                .collect();
            let mut lost = remaining - parts.iter().map(|part| part.2).sum::<i64>();
            parts.sort_by_key(|(rest, child, _)| (-rest, NAMES[*child]));
            for part in &mut parts {
                if lost > 0 && weight(&part.1) > 0 {
                    part.2 += 1;
                    lost -= 1;
                }
                *shares.get_mut(&part.1).unwrap() += part.2;
            }
            remaining = 0;
            hungry.retain(|(child, request)| {
                let share = shares.get_mut(child).unwrap();
                remaining += (*share - request).max(0);
                *share = (*share).min(*request);
                *share < *request
            });
        }
        for (child, share) in shares {
            out.insert(child, (share, mins[&child]));
            let below = self.children(NAMES[child]);
            self.runtimes(&below, share, self.options.scale_min, out);
        }
    }
}

fn run(steps: Vec<QuotaStep>, options: Options) -> Result<(), TestCaseError> {
    let cpu = |n: i64| Amounts::from_iter([(CPU, n)]);
    let mut tree = QuotaTree::new(options);
    let mut specs: BTreeMap<usize, QuotaSpec> = BTreeMap::new();
    let mut pods: Vec<Pod> = Vec::new();
    let mut total = 100;
    tree.set_total(cpu(total));
    let outside = QuotaSpec {
        lendable: true,
        max: cpu(1000),
        ..QuotaSpec::default()
    };
    tree.set(DEFAULT_QUOTA, outside.clone());
    specs.insert(6, outside);
    for step in steps {
        match step {
            QuotaStep::Set(name, parent, max, min, lendable, weight) if name < 6 => {
                // Parents sort first, are missing, or are the root.
                let parent = match parent {
                    at if at < name => NAMES[at].to_owned(),
                    8 => "nowhere".to_owned(),
                    _ => String::new(),
                };
                let spec = QuotaSpec {
                    parent,
                    is_parent: false,
                    lendable,
                    min: cpu(min),
                    max: cpu(max),
                    weight: cpu(weight),
                };
                tree.set(NAMES[name], spec.clone());
                specs.insert(name, spec);
            }
            QuotaStep::Set(..) => {}
            QuotaStep::Remove(name) => {
                tree.remove(NAMES[name]);
                if name < 6 {
                    specs.remove(&name);
                    pods.retain(|pod| pod.0 != name);
                }
            }
            QuotaStep::Pod(name, amount, firm) if specs.contains_key(&name) => {
                tree.charge(NAMES[name], ChargeKind::Request, &cpu(amount), firm, false);
                pods.push((name, amount, firm, false));
            }
            QuotaStep::Pod(..) => {}
            QuotaStep::Place(at) => {
                if let Some(pod) = pods.get_mut(at).filter(|pod| !pod.3) {
                    pod.3 = true;
                    tree.charge(NAMES[pod.0], ChargeKind::Used, &cpu(pod.1), pod.2, false);
                }
            }
            QuotaStep::Drop(at) => {
                if at < pods.len() {
                    let pod = pods.remove(at);
                    tree.charge(NAMES[pod.0], ChargeKind::Request, &cpu(pod.1), pod.2, true);
                    if pod.3 {
                        tree.charge(NAMES[pod.0], ChargeKind::Used, &cpu(pod.1), pod.2, true);
                    }
                }
            }
            QuotaStep::Total(to) => {
                total = to;
                tree.set_total(cpu(total));
            }
            QuotaStep::Ask(name) => {
                tree.fresh(NAMES[name]);
            }
        }
    }
    let reference = Reference {
        specs: &specs,
        pods: &pods,
        total,
        options,
    };
    let divisible = reference.total - reference.own(6, |pod| pod.3);
    let runtimes = reference.all_runtimes(divisible);
    let top = reference.children("");
    let divided: i64 = top.iter().map(|name| runtimes[name].0).sum();
    let guaranteed: i64 = top.iter().map(|name| reference.guaranteed(*name)).sum();
    if options.scale_min && guaranteed <= divisible {
        prop_assert!(
            divided <= divisible.max(0),
            "{divided} of {divisible} divided"
        );
    }
    for (name, spec) in &specs {
        let quota = tree.fresh(NAMES[*name]).unwrap();
        let sums = &quota.sums;
        let amounts = [
            ("request", &sums.request, reference.request(*name)),
            ("used", &sums.used, reference.used(*name, false)),
            (
                "firm request",
                &sums.non_preemptible_request,
                reference.firm_request(*name),
            ),
            (
                "firm use",
                &sums.non_preemptible_used,
                reference.used(*name, true),
            ),
            ("guaranteed", &quota.guaranteed, reference.guaranteed(*name)),
        ];
        for (what, is, expected) in amounts {
            prop_assert_eq!(is.get(CPU), expected, "{} of {:?}", what, quota);
        }
        if *name == 6 {
            // It takes no part in the division: only its maximum limits it.
            prop_assert_eq!(&quota.runtime, &Amounts::new(), "{:?}", quota);
            continue;
        }
        let (runtime, min) = runtimes[name];
        prop_assert_eq!(quota.runtime.get(CPU), runtime, "{:?}", quota);
        prop_assert_eq!(quota.scaled_min.get(CPU), min, "{:?}", quota);
        let request = reference.request(*name).min(spec.max.get(CPU));
        prop_assert!(runtime >= request.min(min), "{:?}", quota);
    }
    let all = |firm| -> i64 {
        let tops = top.iter().chain(&[6]);
        tops.map(|name| reference.used(*name, firm)).sum()
    };
    let root = tree.fresh(koord_api::quota::ROOT_QUOTA).unwrap();
    prop_assert_eq!(root.sums.used.get(CPU), all(false));
    prop_assert_eq!(root.sums.non_preemptible_used.get(CPU), all(true));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn tree_equals_a_computation_from_scratch(
        steps in steps(), scale_min in any::<bool>(), guarantee_used in any::<bool>(),
    ) {
        run(steps, Options { scale_min, guarantee_used })?;
    }
}
