//! InterPodAffinity.
