//! Gangs: members, groups and when they may bind.
