use super::*;
use crate::numa::NumaMask;

/// Formats hints as `gpu: 0* 1 01`: per type the sets of NUMA nodes, `!` for preferred, `*` for the same devices
/// as with all nodes.
fn hints(need: &Need, on: &Inventory, ledger: &DeviceLedger) -> String {
    let site = Site {
        inventory: on,
        used: ledger.used(),
        model: None,
        honor_model: false,
    };
    let place = |mask: NumaMask| {
        allocate(
            need,
            &site,
            &Rules {
                numa: Some(mask),
                ..Rules::default()
            },
        )
    };
    let hints = match numa_hints(need, on, place) {
        Ok(hints) => hints,
        Err(refusal) => return refusal.reason.to_owned(),
    };
    let format_hint = |hint: &crate::numa::Hint| {
        let ids: String = hint.mask.unwrap().ids().map(|id| id.to_string()).collect();
        let marks = [(hint.preferred, "!"), (hint.score == 500, "*")];
        let marks: String = marks
            .into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, mark)| mark)
            .collect();
        format!("{ids}{marks}")
    };
    let of = |(kind, hints): &(DeviceType, Vec<crate::numa::Hint>)| {
        let texts: Vec<String> = hints.iter().map(format_hint).collect();
        format!("{}: {}", kind.name(), texts.join(" "))
    };
    hints.iter().map(of).collect::<Vec<_>>().join("; ")
}

#[test]
fn sets_of_numa_nodes_that_can_serve_are_offered() {
    let on = usual().inventory();
    let count = |functions: bool| match functions {
        true => json!({"rdma": {"allocateStrategy": "RequestsAsCount", "vfSelector": {}}}),
        false => json!({"rdma": {"allocateStrategy": "RequestsAsCount"}}),
    };
    let no = || json!({});
    let both = [("gpu", "100"), ("rdma", "2")];
    let joint = json!({"deviceTypes": ["gpu", "rdma"]});
    let none = || ledger_with(&[], &[]);
    let cases = [
        (
            need(&both, no(), json!(null)),
            none(),
            "gpu: 0!* 1! 01*; rdma: 0!* 1! 01*",
        ),
        (
            need(&[("gpu", "1700"), ("rdma", "2")], no(), json!(null)),
            none(),
            "Insufficient NUMA Scoped Devices",
        ),
        (
            need(&[("gpu", "400")], no(), json!(null)),
            ledger_with(&[0], &[]),
            "gpu: 1!* 01*",
        ),
        (
            need(&[("fpga", "100")], no(), json!(null)),
            none(),
            "Insufficient fpga devices",
        ),
        (
            need(&[("rdma", "2")], count(false), json!(null)),
            none(),
            "rdma: 0!* 1!* 01*",
        ),
        (
            need(&[("rdma", "2")], count(true), json!(null)),
            none(),
            "rdma: 0!* 1!* 01*",
        ),
        (
            need(&[("rdma", "4")], count(true), json!(null)),
            none(),
            "rdma: 01!*",
        ),
        (
            need(&both, json!({"rdma": {"vfSelector": {}}}), joint),
            none(),
            "gpu: 0!* 1! 01*; rdma: 0!* 1! 01*",
        ),
    ];
    for (need, ledger, expected) in &cases {
        assert_eq!(hints(need, &on, ledger), *expected, "{need:?}");
    }
}

#[test]
fn devices_of_unknown_numa_node_give_no_hints_nor_align() {
    let mut object = usual().object();
    for device in object["spec"]["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("topology");
    }
    let on = inventory(object);
    let gpu = need(&[("gpu", "100")], json!({}), json!(null));
    let none = DeviceLedger::default();
    assert_eq!(hints(&gpu, &on, &none), "");
    let aligned = Rules {
        numa: Some(NumaMask(1)),
        ..Rules::default()
    };
    assert_eq!(
        place(&gpu, &on, &none, &aligned),
        "Insufficient gpu devices"
    );
    // A device without a NUMA node suits every set.
    let nowhere = DeviceLayout {
        gpus: vec![(0, -1, "0"), (1, 1, "1")],
        adapters: Vec::new(),
    }
    .inventory();
    assert_eq!(place(&gpu, &nowhere, &none, &aligned), "0 / ");
}
