//! Upstream's tables of `cpu_evict_test.go`, `memory_evict_test.go` and `util/evict_test.go`.

mod accounts;
mod amounts;
mod order;
