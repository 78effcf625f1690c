//! DefaultPreemption: making room by evicting pods of lower priority.
