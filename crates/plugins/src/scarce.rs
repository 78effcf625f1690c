//! ScarceResourceAvoidance: keeps pods off nodes whose scarce resources they do not need.
