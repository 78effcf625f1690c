//! NodeNUMAResource: CPU sets and NUMA alignment.
