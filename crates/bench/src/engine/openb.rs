//! Pods and nodes in the proportions of the openb trace (Alibaba's cluster-trace-gpu-v2023): the 24 most
//! frequent sizes of its pods, which 80 % of them have, and its three most frequent kinds of nodes.

use super::objects::{merge, requests};
use serde_json::{Value, json};

/// Milli-CPU, MiB, percent of a GPU, true if best effort, and the number of such pods in the trace.
const SIZES: [(usize, usize, usize, bool, usize); 24] = [
    (3152, 5600, 81, true, 1047),
    (11300, 49152, 100, false, 857),
    (11400, 48128, 100, false, 534),
    (3152, 5600, 100, true, 470),
    (11908, 47104, 47, false, 388),
    (12500, 57344, 0, false, 364),
    (8000, 30517, 47, true, 358),
    (32000, 49152, 0, true, 284),
    (18708, 64512, 100, false, 255),
    (11908, 47104, 65, false, 237),
    (9810, 41560, 100, false, 195),
    (8000, 30517, 0, true, 163),
    (12000, 24576, 100, false, 158),
    (15700, 58368, 100, false, 158),
    (11908, 47104, 100, true, 153),
    (15400, 51200, 0, false, 120),
    (4000, 22888, 32, true, 111),
    (16000, 32768, 100, false, 108),
    (8000, 16384, 100, false, 104),
    (4000, 24576, 100, false, 104),
    (12000, 16384, 100, false, 99),
    (16500, 51200, 0, false, 95),
    (14200, 58368, 100, false, 93),
    (4000, 30517, 23, true, 84),
];

/// Returns the patch that turns a basic pod into one of Deployment `number`: resource requests, QoS class and
/// priority of a size drawn from the trace.
pub(crate) fn pod_patch(number: usize) -> Value {
    let total: usize = SIZES.iter().map(|size| size.4).sum();
    // Consecutive Deployments differ, and a thousand of them have the trace's proportions.
    let mut draw = number.wrapping_mul(2_654_435_761) % total;
    let drawn = SIZES.iter().find(|size| {
        let is_drawn = draw < size.4;
        draw = draw.saturating_sub(size.4);
        is_drawn
    });
    let (cpu, memory, gpu, is_batch, _) = *drawn.unwrap_or(&SIZES[0]);
    let mut amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
    if gpu > 0 {
        amounts["koordinator.sh/gpu-core"] = json!(gpu.to_string());
        amounts["koordinator.sh/gpu-memory-ratio"] = json!(gpu.to_string());
    }
    let mut change = requests(amounts);
    let (qos, priority) = if is_batch { ("BE", 5500) } else { ("LS", 9000) };
    let class = json!({
        "metadata": {"labels": {koord_api::labels::POD_QOS: qos}}, "spec": {"priority": priority},
    });
    merge(&mut change, &class);
    change
}

/// Returns the number of GPUs of node `number`.
pub(crate) fn gpus(number: usize) -> usize {
    // 588, 387 and 305 of the trace's 1,523 nodes, about.
    [8, 2, 8, 0, 2, 8, 8, 0, 2, 8][number % 10]
}

/// Returns how node `number` differs from a basic one.
pub(crate) fn node(number: usize) -> Value {
    let gpus = gpus(number);
    let (cpu, memory) = match gpus {
        8 => ("96", "384Gi"),
        2 => ("104", "512Gi"),
        _ => ("32", "256Gi"),
    };
    let mut allocatable = json!({"cpu": cpu, "memory": memory});
    if gpus > 0 {
        let shares = (100 * gpus).to_string();
        allocatable["koordinator.sh/gpu-core"] = json!(shares);
        allocatable["koordinator.sh/gpu-memory-ratio"] = json!(shares);
        allocatable["koordinator.sh/gpu-memory"] = json!(format!("{}Gi", 80 * gpus));
    }
    json!({"status": {"allocatable": allocatable}})
}
