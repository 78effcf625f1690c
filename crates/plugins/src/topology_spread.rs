//! PodTopologySpread.
