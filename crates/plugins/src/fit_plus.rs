//! NodeResourcesFitPlus: one scoring strategy per resource.
