//! `ImageLocality`: prefers nodes that already have the pod's images.
//!
//! An image counts by its size and by the share of nodes that have it, so that a single node with an image
//! does not attract all pods. The share changes with every node, so the plugin is volatile. Images that few
//! nodes have cannot reach a score of 1, and are skipped early.

use koord_model::resources;
use koord_scheduler::framework::{
    BoxedPlugin, BuildContext, BuildError, Cycle, Effects, Holders, Normalize, ObjectEvents,
    Plugin, Points, PreScore, PreScoreResult, Roles, Score, State, View, Volatile,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::FxHashMap;
use serde_json::Value;

const MIB: i64 = 1024 * 1024;
/// Minimum weighted image size that counts, in bytes.
const MIN_SIZE: i64 = 23 * MIB;
/// Weighted image size per container at which the score reaches its maximum, in bytes.
const MAX_SIZE: i64 = 1000 * MIB;

/// Size of an image in bytes, and the nodes that have it.
#[derive(Debug, Default)]
struct Image {
    size: i64,
    nodes: usize,
    /// Bit set of the rows that have the image, 64 per word.
    on: Vec<u64>,
}

impl Image {
    fn set(&mut self, row: usize, present: bool) {
        let (word, bit) = (row / 64, 1 << (row % 64));
        if self.on.len() <= word {
            self.on.resize(word + 1, 0);
        }
        let had = self.on[word] & bit != 0;
        if present && !had {
            self.on[word] |= bit;
            self.nodes += 1;
        } else if !present && had {
            self.on[word] &= !bit;
            self.nodes -= 1;
        }
    }

    fn is_on(&self, row: usize) -> bool {
        self.on
            .get(row / 64)
            .is_some_and(|bits| bits & (1 << (row % 64)) != 0)
    }

    /// Returns the size times the share of nodes that have the image.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the published formula, in floating point"
    )]
    fn weighted_size(&self, total: usize) -> i64 {
        let share = self.nodes as f64 / total.max(1) as f64;
        (self.size as f64 * share) as i64
    }
}

/// State of the `ImageLocality` plugin: images with the nodes that have them.
#[derive(Debug, Default)]
pub(crate) struct ImageLocality {
    images: FxHashMap<String, Image>,
    /// Image names by row.
    rows: Vec<Vec<String>>,
}

/// Builds the plugin.
pub(crate) fn build(
    _value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    Ok(Box::<ImageLocality>::default())
}

/// Returns the images of the pod, with the tag defaulted to `latest`, and the number of containers.
fn requested_images(pod: &PodInfo) -> (Vec<String>, i64) {
    let spec = pod.spec();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let mut names = Vec::new();
    for container in init.into_iter().flatten().chain(containers) {
        names.push(full_name(container.image.as_deref().unwrap_or_default()));
    }
    let count = i64::try_from(names.len()).unwrap_or(i64::MAX);
    (names, count)
}

/// Returns the image name with a tag, `latest` by default.
fn full_name(name: &str) -> String {
    let tagged = name.rfind(':') > name.rfind('/') && name.contains(':');
    if tagged {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

/// Returns the score (0 to 100) for a weighted size of all images of this many containers.
fn score_of(sum: i64, containers: i64) -> i64 {
    let max = MAX_SIZE.saturating_mul(containers.max(1));
    100 * (sum.clamp(MIN_SIZE, max) - MIN_SIZE) / (max - MIN_SIZE)
}

impl ImageLocality {
    /// Returns the pod's images that some node has with their weighted sizes, and the number of containers.
    fn available_images(&self, cycle: &Cycle<'_>) -> (Vec<(&Image, i64)>, i64) {
        let (names, containers) = requested_images(cycle.pod);
        let total = cycle.view.nodes.len();
        let images = names.iter().filter_map(|name| self.images.get(name));
        let available_images = images
            .map(|image| (image, image.weighted_size(total)))
            .collect();
        (available_images, containers)
    }
}

impl Plugin for ImageLocality {
    const ROLES: Roles<Self> = Roles::none().pre_score().score().volatile().object_events();

    fn name(&self) -> &'static str {
        "ImageLocality"
    }
    fn points(&self) -> Points {
        Points::PRE_SCORE.or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl PreScore for ImageLocality {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        if self.images.is_empty() {
            return PreScoreResult::Skip;
        }
        let (available_images, containers) = self.available_images(cycle);
        let total = available_images
            .iter()
            .map(|(_, weighted_size)| weighted_size)
            .sum();
        if score_of(total, containers) == 0 {
            return PreScoreResult::Skip;
        }
        PreScoreResult::Ready(State::default())
    }
}

impl Score for ImageLocality {
    fn normalization(&self) -> Normalize {
        Normalize::None
    }
}

impl ObjectEvents for ImageLocality {
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let row = node.row();
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, Vec::new);
        }
        let images = view
            .nodes
            .info(node)
            .and_then(|info| info.object.status.as_ref())
            .and_then(|status| status.images.as_deref())
            .unwrap_or_default();
        let mut now = Vec::new();
        for image in images {
            for name in image.names.iter().flatten() {
                let entry = self.images.entry(name.clone()).or_default();
                if entry.nodes == 0 {
                    entry.size = image.size_bytes.unwrap_or(0).clamp(0, resources::MOST);
                }
                entry.set(row, true);
                now.push(name.clone());
            }
        }
        now.sort_unstable();
        for name in std::mem::replace(&mut self.rows[row], now.clone()) {
            if now.binary_search(&name).is_err()
                && let Some(image) = self.images.get_mut(&name)
            {
                image.set(row, false);
                if image.nodes == 0 {
                    self.images.remove(&name);
                }
            }
        }
    }
}

impl Volatile for ImageLocality {
    fn score_rows(
        &self,
        cycle: &Cycle<'_>,
        _state: &State,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let (available_images, containers) = self.available_images(cycle);
        for (node, score) in rows.iter().zip(scores) {
            let present = available_images
                .iter()
                .filter(|(image, _)| image.is_on(node.row()));
            *score = score_of(
                present.map(|(_, weighted_size)| weighted_size).sum(),
                containers,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untagged_image_names_mean_latest() {
        for (name, expected) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("registry:5000/nginx:1", "registry:5000/nginx:1"),
        ] {
            assert_eq!(full_name(name), expected);
        }
    }

    #[test]
    fn image_score_depends_on_size_and_node_share() {
        for (name, size, nodes, total, containers, expected) in [
            ("small ones do not count", 20 * MIB, 3, 3, 1, 0),
            ("rare ones neither", 250 * MIB, 1, 100, 1, 0),
            ("half the nodes have it", 250 * MIB, 1, 2, 1, 10),
            ("as large as it gets", 4000 * MIB, 2, 2, 1, 100),
            ("more containers, a higher top", 1000 * MIB, 1, 1, 2, 49),
        ] {
            let mut image = Image {
                size,
                ..Image::default()
            };
            for row in 0..nodes {
                image.set(row, true);
            }
            assert_eq!(
                score_of(image.weighted_size(total), containers),
                expected,
                "{name}"
            );
        }
    }
}
