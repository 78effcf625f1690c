//! The components as daemons of their own, against any cluster.
