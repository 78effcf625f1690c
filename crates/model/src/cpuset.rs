//! CPU topology and the choice of CPUs for a pod.
