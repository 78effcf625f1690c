//! Elastic quotas: the tree, request and used propagation, runtime quota.
