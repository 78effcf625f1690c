//! NodePorts.
