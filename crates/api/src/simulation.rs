//! Label and annotation keys of the nodes of `koord up` and of the simulation.

use k8s_openapi::api::core::v1::Node;

/// Label of a node whose pods run as processes of the host, next to nodes that are simulated. The value is
/// `true`.
pub const HOST_LABEL: &str = "node.koordinator.sh/host";
/// Annotation that makes the simulation manage a node: the text `true`.
pub const NODE_ANNOTATION: &str = "sim.koordinator.sh/node";
/// kwok's annotation with the meaning of [`NODE_ANNOTATION`], whatever its value.
pub const KWOK_NODE_ANNOTATION: &str = "kwok.x-k8s.io/node";

/// Returns true if the simulation runs the pods of `node`.
#[must_use]
pub fn is_simulated(node: &Node) -> bool {
    node.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| {
            annotations
                .get(NODE_ANNOTATION)
                .is_some_and(|value| value == "true")
                || annotations.contains_key(KWOK_NODE_ANNOTATION)
        })
}
