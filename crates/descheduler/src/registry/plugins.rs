//! One row for each plugin.

use super::{Built, Registry};
use crate::plugins::{fragmentation_aware, scale_down_bin_pack};

pub(super) fn all() -> Registry {
    use fragmentation_aware::{FragmentationAware, FragmentationAwareArgs};
    use scale_down_bin_pack::{ScaleDownBinPack, ScaleDownBinPackArgs};
    Registry::default()
        .with::<FragmentationAwareArgs>(
            fragmentation_aware::NAME,
            true,
            fragmentation_aware::check,
            |args, _| Ok(Built::balancing(FragmentationAware::new(args))),
        )
        .with::<ScaleDownBinPackArgs>(
            scale_down_bin_pack::NAME,
            true,
            scale_down_bin_pack::check,
            |args, _| Ok(Built::balancing(ScaleDownBinPack::new(args))),
        )
}
