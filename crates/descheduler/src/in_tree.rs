//! Registry of the plugins in this crate, one row per plugin.

use crate::framework::PluginHandles;
use crate::low_node_load::{self, LowNodeLoad};
use crate::migration::args::MigrationControllerArgs;
use crate::plugins::{
    custom_priority, fragmentation_aware, migration_controller, scale_down_bin_pack,
};
use crate::registry::Registry;
use crate::upstream_plugins;

impl Registry {
    /// Returns a registry with every plugin of this crate.
    #[must_use]
    pub fn in_tree() -> Self {
        all()
    }
}

/// Returns a registry with all plugins of this crate.
fn all() -> Registry {
    use custom_priority::{CustomPriority, CustomPriorityArgs};
    use fragmentation_aware::{FragmentationAware, FragmentationAwareArgs};
    use scale_down_bin_pack::{ScaleDownBinPack, ScaleDownBinPackArgs};
    let registry = Registry::default()
        .with::<MigrationControllerArgs>(
            migration_controller::NAME,
            true,
            MigrationControllerArgs::validate,
            |args, context| Ok(migration_controller::build(args, context.profile)),
        )
        .with(
            low_node_load::NAME,
            true,
            low_node_load::Args::check,
            |args, context| {
                let interval = context.config.descheduling_interval;
                Ok(PluginHandles::balancing(
                    LowNodeLoad::new(args).with_interval(interval),
                ))
            },
        )
        .with::<CustomPriorityArgs>(
            custom_priority::NAME,
            true,
            custom_priority::check,
            |args, _| Ok(PluginHandles::balancing(CustomPriority::new(args))),
        )
        .with::<FragmentationAwareArgs>(
            fragmentation_aware::NAME,
            true,
            fragmentation_aware::check,
            |args, _| Ok(PluginHandles::balancing(FragmentationAware::new(args))),
        )
        .with::<ScaleDownBinPackArgs>(
            scale_down_bin_pack::NAME,
            true,
            scale_down_bin_pack::check,
            |args, _| Ok(PluginHandles::balancing(ScaleDownBinPack::new(args))),
        );
    upstream_plugins::register(registry)
}
