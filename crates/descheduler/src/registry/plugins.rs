//! One row for each plugin.

use super::{Built, Registry};
use crate::plugins::scale_down_bin_pack;

pub(super) fn all() -> Registry {
    use scale_down_bin_pack::{ScaleDownBinPack, ScaleDownBinPackArgs};
    Registry::default().with::<ScaleDownBinPackArgs>(
        scale_down_bin_pack::NAME,
        true,
        scale_down_bin_pack::check,
        |args, _| Ok(Built::balancing(ScaleDownBinPack::new(args))),
    )
}
