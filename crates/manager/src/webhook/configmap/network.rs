//! Validates the network shares in `resource-qos-config`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use koord_api::configmap::{ResourceQOSStrategy, SloControllerConfig, keys};
use koord_api::quantity::Quantity;
use koord_api::slo::NetworkQOSCfg;

/// Returns the problems of the shares of all classes together. A share is a percentage or an amount per
/// second; other values were dropped when the settings were parsed. `total` is true if there are settings
/// with the total bandwidth of nodes.
pub(super) fn violations(config: &SloControllerConfig, total: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let cluster = config.system.cluster.total_network_bandwidth;
    let cluster = cluster.filter(|_| total);
    strategy(
        "clusterStrategy",
        &config.resource_qos.cluster,
        cluster,
        &mut problems,
    );
    for (at, node) in config.resource_qos.nodes.iter().enumerate() {
        let matching = config
            .system
            .nodes
            .iter()
            .find(|other| other.selector == node.selector);
        let bandwidth = matching.and_then(|other| other.strategy.total_network_bandwidth);
        let name = match node.name.as_str() {
            "" => format!("override \"#{at}\""),
            name => format!("override {name:?}"),
        };
        strategy(
            &name,
            &node.strategy,
            bandwidth.filter(|_| total),
            &mut problems,
        );
    }
    problems
}

/// Checks the network shares of a strategy; `total` is the bandwidth of the node, if it is set.
fn strategy(
    name: &str,
    strategy: &ResourceQOSStrategy,
    total: Option<Quantity>,
    problems: &mut Vec<String>,
) {
    let classes = [&strategy.lsr_class, &strategy.ls_class, &strategy.be_class];
    let classes: Vec<&NetworkQOSCfg> = classes
        .into_iter()
        .filter_map(|qos| qos.as_ref()?.network_qos.as_ref())
        .collect();
    let key = keys::RESOURCE_QOS;
    type ShareField = fn(&NetworkQOSCfg) -> &Option<IntOrString>;
    let parts: [(&str, ShareField); 2] = [
        ("ingressRequest", |network| &network.ingress_request),
        ("egressRequest", |network| &network.egress_request),
    ];
    for (part, of) in parts {
        let (mut percent, mut amount, mut kinds) = (0, Quantity::ZERO, [false; 2]);
        for network in &classes {
            match of(network) {
                None => {}
                Some(IntOrString::Int(share)) => {
                    kinds[0] = true;
                    percent += i64::from(*share);
                }
                Some(IntOrString::String(text)) => {
                    kinds[1] = true;
                    amount += text.parse::<Quantity>().unwrap_or_default();
                }
            }
        }
        let all = format!("{key}: {name}: fields networkQOS.{part} of all classes");
        if kinds == [true, true] {
            problems.push(format!("{all}: some are percentages and some are amounts"));
        } else if percent > 100 {
            problems.push(format!(
                "{all}: their sum is {percent}: must be at most 100"
            ));
        } else if let Some(total) = total.filter(|total| !total.is_zero() && amount > *total) {
            problems.push(format!(
                "{all}: their sum is {amount}: must be at most totalNetworkBandwidth, which is {total}"
            ));
        }
    }
}
