//! What unset fields of a NodeSLO mean.
