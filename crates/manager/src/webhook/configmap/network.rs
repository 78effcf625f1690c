//! The network shares of `resource-qos-config`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use koord_api::configmap::{ResourceQOSStrategy, SloControllerConfig, keys};
use koord_api::quantity::Quantity;
use koord_api::slo::NetworkQOSCfg;

/// What is wrong with the shares. A share is a percentage or an amount per second. `total`: whether
/// there are settings that say what a node's network can do.
pub(super) fn violations(config: &SloControllerConfig, total: bool) -> Vec<String> {
    let mut found = Vec::new();
    let cluster = config.system.cluster.total_network_bandwidth;
    let cluster = cluster.filter(|_| total);
    strategy(
        "clusterStrategy",
        &config.resource_qos.cluster,
        cluster,
        &mut found,
    );
    for (at, node) in config.resource_qos.nodes.iter().enumerate() {
        let same = config
            .system
            .nodes
            .iter()
            .find(|other| other.selector == node.selector);
        let bandwidth = same.and_then(|other| other.strategy.total_network_bandwidth);
        let name = match node.name.as_str() {
            "" => format!("override \"#{at}\""),
            name => format!("override {name:?}"),
        };
        strategy(
            &name,
            &node.strategy,
            bandwidth.filter(|_| total),
            &mut found,
        );
    }
    found
}

fn strategy(
    name: &str,
    strategy: &ResourceQOSStrategy,
    total: Option<Quantity>,
    found: &mut Vec<String>,
) {
    let classes = [
        ("lsrClass", &strategy.lsr_class),
        ("lsClass", &strategy.ls_class),
        ("beClass", &strategy.be_class),
    ];
    let classes: Vec<(&str, &NetworkQOSCfg)> = classes
        .into_iter()
        .filter_map(|(class, qos)| Some((class, qos.as_ref()?.network_qos.as_ref()?)))
        .collect();
    let key = keys::RESOURCE_QOS;
    type Part = fn(&NetworkQOSCfg) -> &Option<IntOrString>;
    let parts: [(&str, bool, Part); 4] = [
        ("ingressRequest", true, |network| &network.ingress_request),
        ("ingressLimit", false, |network| &network.ingress_limit),
        ("egressRequest", true, |network| &network.egress_request),
        ("egressLimit", false, |network| &network.egress_limit),
    ];
    for (part, is_request, of) in parts {
        let (mut percent, mut amount, mut kinds) = (0, Quantity::ZERO, [false; 2]);
        for (class, network) in &classes {
            let field = format!("{key}: {name}: field {class}.networkQOS.{part}");
            match of(network) {
                None => {}
                Some(IntOrString::Int(share)) => {
                    kinds[0] = true;
                    percent += i64::from(*share);
                    if !(0..=100).contains(share) {
                        found.push(format!("{field} is {share}: must be from 0 to 100"));
                    }
                }
                Some(IntOrString::String(text)) => match text.parse::<Quantity>() {
                    Ok(share) if share.signum() >= 0 => {
                        kinds[1] = true;
                        amount += share;
                    }
                    Ok(_) => found.push(format!("{field} is {text:?}: must not be negative")),
                    Err(error) => found.push(format!("{field} is {text:?}: {error}")),
                },
            }
        }
        if !is_request {
            continue;
        }
        let all = format!("{key}: {name}: fields networkQOS.{part} of all classes");
        if kinds == [true, true] {
            found.push(format!("{all}: some are percentages and some are amounts"));
        } else if percent > 100 {
            found.push(format!(
                "{all}: their sum is {percent}: must be at most 100"
            ));
        } else if let Some(total) = total.filter(|total| !total.is_zero() && amount > *total) {
            found.push(format!(
                "{all}: their sum is {amount}: must be at most totalNetworkBandwidth, which is {total}"
            ));
        }
    }
}
