//! VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits.
