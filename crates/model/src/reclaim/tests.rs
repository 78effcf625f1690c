use super::*;
use koord_api::quantity::Quantity;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap()
}

/// Parses amounts: `"7/12G"` is 7 cores and 12 G.
fn amount(text: &str) -> Amount {
    let (cpu, memory) = text.split_once('/').unwrap();
    Amount::new(quantity(cpu), quantity(memory))
}

fn pod(priority: PriorityClass, qos: QosClass, request: &str, usage: &str) -> PodView {
    PodView {
        priority,
        qos,
        request: amount(request),
        usage: (!usage.is_empty()).then(|| amount(usage)),
        numa_nodes: Vec::new(),
    }
}

fn node_a() -> NodeView {
    NodeView {
        capacity: amount("100/120G"),
        allocatable: amount("100/120G"),
        system_usage: amount("7/12G"),
        pods: vec![
            pod(PriorityClass::Prod, QosClass::Ls, "20/20G", "11/11G"),
            pod(PriorityClass::Batch, QosClass::Be, "0/0", "10/10G"),
            pod(PriorityClass::Prod, QosClass::Ls, "20/40G", "22/22G"),
        ],
        ..NodeView::default()
    }
}

fn policy_65() -> BatchPolicy {
    BatchPolicy {
        cpu_reclaim_percent: 65,
        memory_reclaim_percent: 65,
        ..BatchPolicy::default()
    }
}

fn check(node: &NodeView, policy: &BatchPolicy, milli_cpu: i64, memory: &str) {
    let batch = batch(node, policy);
    assert_eq!(
        batch.milli_cpu(),
        Quantity::from_value(milli_cpu),
        "{node:?}"
    );
    assert_eq!(batch.memory, quantity(memory), "{node:?}");
}

#[test]
fn golden_batch_by_usage() {
    check(&node_a(), &policy_65(), 25_000, "33G");
    let (cpu, memory) = explain(&batch(&node_a(), &policy_65()), &policy_65());
    assert_eq!(
        cpu,
        "batchAllocatable[CPU(Milli-Core)]:25000 = nodeCapacity:100000 - nodeSafetyMargin:35000 \
         - systemUsageOrNodeReserved:7000 - podHPUsed:33000"
    );
    assert!(
        memory.contains(":33 = nodeCapacity:120 - nodeSafetyMargin:42"),
        "{memory}"
    );
}

#[test]
fn golden_batch_with_reservation_annotation() {
    let node = NodeView {
        reserved_by_annotation: amount("0/20G"),
        ..node_a()
    };
    check(&node, &policy_65(), 25_000, "25G");
}

#[test]
fn golden_batch_by_zone() {
    let mut lse = pod(PriorityClass::Prod, QosClass::Lse, "10/10G", "5/5G");
    lse.numa_nodes = vec![0];
    let node = NodeView {
        capacity: amount("100/120G"),
        allocatable: amount("100/120G"),
        system_usage: amount("7/12G"),
        pods: vec![
            lse,
            pod(PriorityClass::Prod, QosClass::Ls, "10/10G", "6/6G"),
            pod(PriorityClass::Batch, QosClass::Be, "10/10G", "10/10G"),
            pod(PriorityClass::Mid, QosClass::Be, "20/40G", "22/22G"),
        ],
        ..NodeView::default()
    };
    let policy = BatchPolicy {
        memory: MemoryPolicy::Request,
        ..policy_65()
    };
    check(&node, &policy, 20_000, "18G");
    let zones = [
        NumaZone {
            index: 0,
            allocatable: amount("50/62G"),
        },
        NumaZone {
            index: 1,
            allocatable: amount("50/58G"),
        },
    ];
    let zones = batch_by_zone(&node, &zones, &policy);
    let cpu: Vec<_> = zones.iter().map(|zone| zone.milli_cpu().value()).collect();
    let memory: Vec<_> = zones.iter().map(|zone| zone.memory.value()).collect();
    assert_eq!(cpu, [5_000, 15_000]);
    assert_eq!(memory, [5_300_000_000, 12_700_000_000]);
}

#[test]
fn zone_index_is_its_number_not_its_position() {
    let mut bound = pod(PriorityClass::Prod, QosClass::Ls, "4/4G", "4/4G");
    bound.numa_nodes = vec![10];
    let node = NodeView {
        capacity: amount("20/20G"),
        pods: vec![bound],
        ..NodeView::default()
    };
    let node = NodeView {
        allocatable: node.capacity,
        ..node
    };
    let zone = |index| NumaZone {
        index,
        allocatable: amount("10/10G"),
    };
    let policy = BatchPolicy {
        cpu_reclaim_percent: 100,
        ..BatchPolicy::default()
    };
    let batch = batch_by_zone(&node, &[zone(10), zone(2)], &policy);
    assert_eq!(batch[0].milli_cpu().value(), 6_000);
    assert_eq!(batch[1].milli_cpu().value(), 10_000);
}

#[test]
fn policies_charge_use_request_or_both() {
    let with = |cpu, memory| BatchPolicy {
        cpu,
        memory,
        ..policy_65()
    };
    // Requests are 40 and 60 G, use 33 and 33 G, the larger of both 20+22 and 20+40 G.
    check(
        &node_a(),
        &with(CpuPolicy::MaxUsageRequest, MemoryPolicy::Usage),
        16_000,
        "33G",
    );
    check(
        &node_a(),
        &with(CpuPolicy::Usage, MemoryPolicy::Request),
        25_000,
        "18G",
    );
    check(
        &node_a(),
        &with(CpuPolicy::Usage, MemoryPolicy::MaxUsageRequest),
        25_000,
        "6G",
    );
}

#[test]
fn unmeasured_pod_counts_with_request() {
    let mut node = node_a();
    node.pods[0].usage = None;
    check(&node, &policy_65(), 16_000, "24G");
    let max = BatchPolicy {
        cpu: CpuPolicy::MaxUsageRequest,
        ..policy_65()
    };
    check(&node, &max, 16_000, "24G");
    check(
        &node,
        &BatchPolicy {
            charge_unmeasured: false,
            ..max
        },
        36_000,
        "24G",
    );
}

#[test]
fn lse_pods_use_all_their_cpus() {
    let mut node = node_a();
    node.pods[0].qos = QosClass::Lse;
    check(&node, &policy_65(), 16_000, "33G");
}

#[test]
fn dangling_metrics_and_host_apps_are_charged_by_priority() {
    let mut node = node_a();
    for priority in [PriorityClass::Batch, PriorityClass::Free] {
        node.dangling.push(ClassUsage {
            priority,
            usage: amount("5/5G"),
        });
    }
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::Batch,
        usage: amount("5/5G"),
    });
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::None,
        usage: amount("5/5G"),
    });
    check(&node, &policy_65(), 25_000, "33G");
    node.dangling.push(ClassUsage {
        priority: PriorityClass::None,
        usage: amount("5/5G"),
    });
    check(&node, &policy_65(), 20_000, "28G");
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::Mid,
        usage: amount("1/1G"),
    });
    check(&node, &policy_65(), 19_000, "27G");
}

#[test]
fn reservations_count_where_they_exceed_system_use() {
    let mut node = NodeView {
        allocatable: amount("90/119G"),
        ..node_a()
    };
    check(&node, &policy_65(), 22_000, "33G");
    node.reserved_by_annotation = amount("12/0");
    check(&node, &policy_65(), 20_000, "33G");
    // A negative reservation adds nothing.
    let odd = NodeView {
        allocatable: amount("120/200G"),
        ..node_a()
    };
    check(&odd, &policy_65(), 25_000, "33G");
}

#[test]
fn limits_and_extremes() {
    let limited = BatchPolicy {
        cpu_limit_percent: Some(10),
        memory_limit_percent: Some(5),
        ..policy_65()
    };
    check(&node_a(), &limited, 10_000, "6G");
    let over = BatchPolicy {
        cpu_reclaim_percent: 150,
        ..policy_65()
    };
    // 110 cores upstream; the node has 100.
    check(&node_a(), &over, 100_000, "33G");
    let nothing = BatchPolicy {
        cpu_reclaim_percent: 0,
        memory_reclaim_percent: 0,
        ..policy_65()
    };
    check(&node_a(), &nothing, 0, "0");
}

#[test]
fn percents_are_cut_off_in_floating_point() {
    assert_eq!(scale_milli(quantity("100"), 0.29), quantity("28999m"));
    assert_eq!(scale(quantity("100000"), 0.29), quantity("28999"));
    assert_eq!(scale(quantity("1500m"), 1.0), quantity("2"));
    assert_eq!(amount("10/10").share(3), amount("3334m/3334m"));
    assert_eq!(amount("10/10").share(0), amount("10/10"));
}

fn node_c() -> NodeView {
    NodeView {
        capacity: amount("100/210G"),
        allocatable: amount("100/210G"),
        node_usage: Some(amount("20/45G")),
        prod_reclaimable: amount("10/15G"),
        pods: vec![
            pod(PriorityClass::Prod, QosClass::Ls, "20/40G", ""),
            pod(PriorityClass::Batch, QosClass::Be, "15/30G", ""),
        ],
        ..NodeView::default()
    }
}

fn check_mid(node: &NodeView, policy: &MidPolicy, milli_cpu: i64, memory: &str) {
    let mid = mid(node, policy);
    assert_eq!(
        mid.milli_cpu(),
        Quantity::from_value(milli_cpu),
        "{}",
        mid.cpu_message
    );
    assert_eq!(mid.memory, quantity(memory), "{}", mid.memory_message);
}

#[test]
fn golden_mid() {
    check_mid(&node_c(), &MidPolicy::default(), 10_000, "15G");
    let none = NodeView {
        prod_reclaimable: Amount::ZERO,
        ..node_c()
    };
    check_mid(&none, &MidPolicy::default(), 0, "0");
}

#[test]
fn mid_is_bounded_by_unused_amounts_and_its_limit() {
    let busy = NodeView {
        node_usage: Some(amount("95/200G")),
        ..node_c()
    };
    check_mid(&busy, &MidPolicy::default(), 5_000, "10G");
    let over = NodeView {
        node_usage: Some(amount("101/200G")),
        ..node_c()
    };
    check_mid(&over, &MidPolicy::default(), 0, "10G");
    let unknown = NodeView {
        node_usage: None,
        ..node_c()
    };
    check_mid(&unknown, &MidPolicy::default(), 0, "0");
    let limit = MidPolicy {
        cpu_limit_percent: 5,
        memory_limit_percent: 50,
        ..MidPolicy::default()
    };
    check_mid(&node_c(), &limit, 5_000, "15G");
}

#[test]
fn mid_contains_a_part_of_unrequested_amounts() {
    let policy = MidPolicy {
        unallocated_percent: 10,
        ..MidPolicy::default()
    };
    // Prod does not request 100 − 20 and 210 − 40.
    check_mid(&node_c(), &policy, 18_000, "32G");
    let mut node = NodeView {
        system_usage: amount("10/0"),
        ..node_c()
    };
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::Prod,
        usage: amount("10/0"),
    });
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::Mid,
        usage: amount("10/0"),
    });
    check_mid(&node, &policy, 16_000, "32G");
}

#[test]
fn static_mid_is_a_part_of_the_capacity() {
    let mode = MidMode::Static {
        cpu_percent: 30,
        memory_percent: 10,
    };
    let policy = MidPolicy {
        mode,
        cpu_limit_percent: 20,
        ..MidPolicy::default()
    };
    check_mid(&node_c(), &policy, 20_000, "21G");
}

#[test]
fn reports_go_stale() {
    assert!(is_stale(None, 0, 15));
    assert!(!is_stale(Some(100), 100 + 15 * 60, 15));
    assert!(is_stale(Some(100), 101 + 15 * 60, 15));
    assert!(!is_stale(Some(100), 101, i64::MAX));
}

#[test]
fn small_changes_are_none() {
    let q = |value| Some(Quantity::from_value(value));
    assert!(!differs(None, None, 0.1));
    assert!(differs(None, q(0), 0.1) && differs(q(0), None, 0.1));
    assert!(!differs(q(100), q(110), 0.1) && differs(q(100), q(111), 0.1));
    assert!(!differs(q(100), q(90), 0.1) && differs(q(100), q(89), 0.1));
    assert!(differs(q(0), q(1), 0.1) && !differs(q(0), q(0), 0.1));
}

#[test]
fn third_party_reservations_are_subtracted() {
    assert_eq!(
        after_third_parties(quantity("10"), quantity("3")),
        quantity("7")
    );
    assert_eq!(
        after_third_parties(quantity("10"), quantity("30")),
        quantity("0")
    );
}

#[test]
fn batch_never_exceeds_the_node() {
    let policy = BatchPolicy {
        cpu_reclaim_percent: 300,
        memory_reclaim_percent: i64::MAX,
        ..BatchPolicy::default()
    };
    let node = NodeView {
        capacity: Amount::new("2".parse().unwrap(), "8Gi".parse().unwrap()),
        ..NodeView::default()
    };
    let zones = [NumaZone {
        index: 0,
        allocatable: node.capacity,
    }];
    for batch in [
        batch(&node, &policy),
        batch_by_zone(&node, &zones, &policy)[0],
    ] {
        assert_eq!(batch.cpu, node.capacity.cpu);
        assert_eq!(batch.memory, node.capacity.memory);
    }
}

#[test]
fn terms_add_up_and_name_their_settings() {
    let amounts = |sum: &Sum| -> Vec<(&str, i64)> {
        let terms = sum.terms.iter();
        terms.map(|term| (term.what, term.amount.value())).collect()
    };
    let check = |node: &NodeView, policy: &BatchPolicy| {
        let batch = batch(node, policy);
        let sums = sums(&batch, policy);
        assert_eq!((sums[0].total, sums[1].total), (batch.cpu, batch.memory));
        for sum in &sums {
            let all = sum.terms.iter().map(|term| term.amount);
            assert_eq!(all.fold(Quantity::ZERO, |a, b| a + b), sum.total, "{sum:?}");
        }
        sums
    };
    // Golden fixture A.
    let [cpu, memory] = check(&node_a(), &policy_65());
    let want = [
        ("capacity", 100),
        ("safety margin", -35),
        ("system use", -7),
        ("services", -33),
    ];
    assert_eq!(amounts(&cpu), want);
    let setting = |term: &Term| {
        let setting = term.setting.as_ref();
        setting.map(|setting| format!("{}={}", setting.name, setting.value))
    };
    let by = |sum: &Sum| sum.terms.iter().map(setting).collect::<Vec<_>>();
    let named = |texts: &[&str]| -> Vec<_> {
        let text = |text: &&str| (!text.is_empty()).then(|| (*text).to_owned());
        texts.iter().map(text).collect()
    };
    let chose = [
        "",
        "cpuReclaimThresholdPercent=65",
        "",
        "cpuCalculatePolicy=usage",
    ];
    assert_eq!(by(&cpu), named(&chose));
    let signs: Vec<_> = cpu.terms.iter().map(|term| term.taken).collect();
    assert_eq!(signs, [false, true, true, true]);
    assert!(memory.terms[2].why.contains("reserved"));
    let mut policy = policy_65();
    policy.memory = MemoryPolicy::Request;
    policy.cpu_limit_percent = Some(10);
    policy.memory_reclaim_percent = 0;
    let [cpu, memory] = check(&node_a(), &policy);
    assert_eq!(*amounts(&cpu).last().unwrap(), ("limit", -15));
    let chose = "batchCPUThresholdPercent=10";
    assert_eq!(by(&cpu).last(), named(&[chose]).last());
    assert_eq!(amounts(&memory)[2].0, "reserved");
    assert_eq!(by(&memory)[2], named(&["memoryCalculatePolicy=request"])[0]);
    assert_eq!(amounts(&memory).last().unwrap().0, "missing");
    policy.cpu_reclaim_percent = 300;
    policy.cpu_limit_percent = None;
    let [cpu, _] = check(&node_a(), &policy);
    assert!(cpu.terms[4].why.contains("never more than there is"));
    // The source of the reservation, and the amounts that count as system.
    let mut node = node_a();
    node.reserved_by_annotation = amount("12/0");
    node.allocatable = amount("95/119G");
    let [cpu, memory] = check(&node, &policy_65());
    assert_eq!(amounts(&cpu)[2], ("reserved", -12));
    let reason = &cpu.terms[2].why;
    assert!(
        reason.contains("annotation node.koordinator.sh/reservation") && reason.contains("(7000m)")
    );
    assert_eq!(amounts(&memory)[2], ("system use", -12_000_000_000));
    node.reserved_by_annotation = amount("1/0");
    node.allocatable = amount("90/119G");
    let [cpu, _] = check(&node, &policy_65());
    assert_eq!(amounts(&cpu)[2], ("reserved", -10));
    assert!(cpu.terms[2].why.contains("kubelet"));
    node.host_apps.push(ClassUsage {
        priority: PriorityClass::Prod,
        usage: amount("4/0"),
    });
    let [cpu, memory] = check(&node, &policy_65());
    assert_eq!(amounts(&cpu)[2..4], [("system use", -7), ("host apps", -4)]);
    assert_eq!(memory.terms.len(), 4);
    // The charges of the single pods add up to the charged sum.
    let one_by_one = node_a().pods.iter().fold(Amount::ZERO, |mut sum, pod| {
        sum += charged(pod, &policy_65());
        sum
    });
    assert_eq!(one_by_one, amount("33/33G"));
}

#[test]
fn mid_terms_add_up_and_name_their_settings() {
    let check = |node: &NodeView, policy: &MidPolicy, cpu: &[(&str, i64, bool, &str)]| {
        let amount = mid(node, policy);
        let sums = mid_sums(node, policy);
        assert_eq!((sums[0].total, sums[1].total), (amount.cpu, amount.memory));
        for sum in &sums {
            let all = sum.terms.iter().map(|term| term.amount);
            assert_eq!(all.fold(Quantity::ZERO, |a, b| a + b), sum.total, "{sum:?}");
        }
        let setting = |term: &Term| {
            let setting = term.setting.as_ref();
            setting.map_or_else(String::new, |s| format!("{}={}", s.name, s.value))
        };
        let terms: Vec<_> = sums[0]
            .terms
            .iter()
            .map(|term| (term.what, term.amount.value(), term.taken, setting(term)))
            .collect();
        let want: Vec<_> = cpu
            .iter()
            .map(|(what, amount, taken, by)| (*what, *amount, *taken, (*by).to_owned()))
            .collect();
        assert_eq!(terms, want);
        sums
    };
    let none = "midUnallocatedPercent=0";
    let predicted = MidPolicy::default();
    check(
        &node_c(),
        &predicted,
        &[
            ("reclaimable", 10, false, ""),
            ("unallocated", 0, false, none),
        ],
    );
    let busy = NodeView {
        node_usage: Some(amount("95/200G")),
        ..node_c()
    };
    // 5 of 10 reclaimable cores are unused; of 100 − 20 a tenth; at most 12.
    let bounded = MidPolicy {
        unallocated_percent: 10,
        cpu_limit_percent: 12,
        ..MidPolicy::default()
    };
    let [cpu, _] = check(
        &busy,
        &bounded,
        &[
            ("reclaimable", 10, false, ""),
            ("in use", -5, true, ""),
            ("unallocated", 8, false, "midUnallocatedPercent=10"),
            ("limit", -1, true, "midCPUThresholdPercent=12"),
        ],
    );
    assert!(cpu.terms[1].why.contains("unused (5000m)"));
    let unknown = NodeView {
        node_usage: None,
        ..node_c()
    };
    let [cpu, _] = check(
        &unknown,
        &predicted,
        &[
            ("reclaimable", 10, false, ""),
            ("in use", -10, true, ""),
            ("unallocated", 0, false, none),
        ],
    );
    assert!(cpu.terms[1].why.contains("does not say"));
    let fixed = MidPolicy {
        mode: MidMode::Static {
            cpu_percent: 30,
            memory_percent: 10,
        },
        cpu_limit_percent: 20,
        ..MidPolicy::default()
    };
    check(
        &node_c(),
        &fixed,
        &[
            ("share", 30, false, "midStaticCPUReservedPercent=30"),
            ("limit", -10, true, "midCPUThresholdPercent=20"),
        ],
    );
}

/// The use of the system and of host services is divided and rounded together.
#[test]
fn zone_share_of_system_use_is_rounded_once() {
    let zones = [0, 1].map(|index| NumaZone {
        index,
        allocatable: amount("10/10G"),
    });
    let node = NodeView {
        capacity: amount("20/20G"),
        allocatable: amount("20/20G"),
        system_usage: amount("1m/0"),
        host_apps: vec![ClassUsage {
            priority: PriorityClass::Prod,
            usage: amount("1m/0"),
        }],
        ..NodeView::default()
    };
    let whole = BatchPolicy {
        cpu_reclaim_percent: 100,
        ..BatchPolicy::default()
    };
    for batch in batch_by_zone(&node, &zones, &whole) {
        assert_eq!(batch.milli_cpu(), Quantity::from_value(9999));
    }
}

/// Upstream excludes such a pod from the node's sum, but not from its zones' sums.
#[test]
fn zones_are_charged_for_unmeasured_pods_in_any_case() {
    let zones = [0, 1].map(|index| NumaZone {
        index,
        allocatable: amount("10/10G"),
    });
    let node = NodeView {
        capacity: amount("20/20G"),
        allocatable: amount("20/20G"),
        pods: vec![pod(PriorityClass::Prod, QosClass::Ls, "4/0", "")],
        ..NodeView::default()
    };
    let policy = BatchPolicy {
        cpu_reclaim_percent: 100,
        memory_reclaim_percent: 100,
        cpu: CpuPolicy::MaxUsageRequest,
        charge_unmeasured: false,
        ..BatchPolicy::default()
    };
    check(&node, &policy, 20_000, "20G");
    for batch in batch_by_zone(&node, &zones, &policy) {
        assert_eq!(batch.milli_cpu(), Quantity::from_value(8000));
    }
    // A pod that has metrics but no longer exists counts, too.
    let node = NodeView {
        dangling: vec![ClassUsage {
            priority: PriorityClass::Prod,
            usage: amount("3/0"),
        }],
        ..node
    };
    check(&node, &policy, 17_000, "20G");
}

#[test]
fn requests_of_mid_pods_are_not_subtracted_from_mid() {
    let node = NodeView {
        capacity: amount("100/100G"),
        allocatable: amount("100/100G"),
        pods: vec![
            pod(PriorityClass::Prod, QosClass::Ls, "20/20G", "1/1G"),
            pod(PriorityClass::Mid, QosClass::Ls, "40/40G", "1/1G"),
        ],
        ..NodeView::default()
    };
    let policy = MidPolicy {
        unallocated_percent: 50,
        ..MidPolicy::default()
    };
    check_mid(&node, &policy, 40_000, "40G");
}
