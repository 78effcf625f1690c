//! SchedulingHint: nodes named by an annotation.
