//! Evaluations that pods of one shape share.

use super::class::Evaluation;
use crate::framework::ShapeId;
use rustc_hash::FxHashMap;

/// Evaluations by profile and shape.
///
/// Invariant: `bytes` is the sum of what the evaluations were counted with, and each was counted after its last use.
#[derive(Debug)]
pub(super) struct ClassCache {
    /// Whether pods may share evaluations.
    pub(super) enabled: bool,
    pub(super) by_shape: FxHashMap<(usize, ShapeId), Evaluation>,
    /// How many bytes the evaluations take together.
    pub(super) bytes: usize,
    /// How often an evaluation was used.
    pub(super) uses: u64,
    /// How often an evaluation named a node that the pod's own check refused.
    pub(super) mismatches: u64,
}

impl Default for ClassCache {
    fn default() -> Self {
        Self {
            enabled: true,
            by_shape: FxHashMap::default(),
            bytes: 0,
            uses: 0,
            mismatches: 0,
        }
    }
}
