//! Feature gates of all programs against upstream's. Upstream's manager and descheduler parse `--feature-gates` with
//! one map, so a value that both get must not stop one of them; the scheduler's map has some of the same names.

use koord_app::features::{FeatureStage, Gate, Gates};
use std::collections::BTreeMap;

/// Gates whose default differs from upstream's on purpose, in the manager only.
const OTHER_DEFAULT: [&str; 1] = ["ConfigMapValidatingWebhook"];

/// Upstream's map: stages and defaults by name.
fn upstream() -> BTreeMap<&'static str, (FeatureStage, bool)> {
    let lines = include_str!("../../../manager/tests/it/upstream-flags.txt").lines();
    let gates = lines.filter_map(|line| {
        let mut fields = line.strip_prefix("gate ")?.split(' ');
        let (name, stage, default) = (fields.next()?, fields.next()?, fields.next()?);
        let stage = if stage == "BETA" {
            FeatureStage::Beta
        } else {
            FeatureStage::Alpha
        };
        (!name.starts_with("All")).then_some((name, (stage, default == "true")))
    });
    gates.collect()
}

#[test]
fn shared_gates_are_accepted_by_every_program() {
    let upstream = upstream();
    assert!(upstream.len() > 30);
    let manager = koord_manager::GATES;
    let descheduler = koord_descheduler::args::GATES;
    for (program, gates) in [("manager", manager), ("descheduler", descheduler)] {
        for (name, (stage, default)) in &upstream {
            let gate = gates.iter().find(|gate| gate.name == *name);
            let gate = gate.unwrap_or_else(|| panic!("koord-{program} has no gate {name}"));
            assert_eq!(gate.stage, *stage, "koord-{program}: {name}");
            let differs = program == "manager" && OTHER_DEFAULT.contains(name);
            assert_eq!(gate.default != *default, differs, "koord-{program}: {name}");
        }
        let all: Vec<_> = upstream.keys().map(|name| format!("{name}=true")).collect();
        Gates::parse(gates, &all.join(",")).unwrap();
    }
}

#[test]
fn gates_of_several_programs_have_one_meaning() {
    let upstream = upstream();
    let programs: [(&str, &[Gate]); 2] = [
        ("koord-scheduler", koord_scheduler::args::GATES),
        ("koordlet", koordlet::gates::GATES),
    ];
    for (program, gates) in programs {
        for gate in gates {
            if let Some((stage, default)) = upstream.get(gate.name) {
                let own = (gate.stage, gate.default);
                assert_eq!(own, (*stage, *default), "{program}: {}", gate.name);
            }
        }
    }
}
