//! The [`Plugin`] trait and the list of roles that a plugin can have.

#[cfg(doc)]
use super::PerProfile;
use super::{
    Alignment, Bind, BuildContext, BuildError, Explain, Filter, Grouping, Holders, Inputs,
    MetricSource, ObjectEvents, Permit, Planning, PodEvents, Points, PostBind, PostFilter,
    PostFilterTransformer, PreBind, PreEnqueue, PreFilter, PreScore, Preparation, Protection,
    QueueHints, Release, Reserve, Score, Sign, Tick, Volatile,
};

/// A scheduling plugin. One instance serves all profiles that configure it with equal arguments; an instance
/// that keeps track of allocations serves all profiles ([`Plugin::join`]).
///
/// Its behavior is the sum of its [`Roles`], one trait each. All methods of all roles are called from the one
/// task that owns the engine; those with `&self` may be called for several nodes in parallel.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// The roles of the plugin. A role that is implemented but not listed here is never called.
    const ROLES: Roles<Self>;
    /// Returns the name used in configuration files and metrics.
    fn name(&self) -> &'static str;
    /// Returns the extension points at which configurations may list the plugin. They are those of the
    /// upstream plugin; at a point for which the plugin has no role, listing it has no effect.
    fn points(&self) -> Points;
    /// Returns how the plugin treats holders. With [`Holders::Judged`], it is called at the extension points
    /// before reserve and by [`Explain::explain`]; with [`Holders::Booked`], also from reserve on, and its
    /// [`PodEvents::on_pod`], [`PodEvents::on_assigned`], [`PodEvents::on_updated`] and
    /// [`PodEvents::on_unassigned`] are called.
    fn holders(&self) -> Holders {
        Holders::Ignored
    }
    /// Adds the arguments of another profile to this instance. A plugin that allocates in
    /// [`Reserve::reserve`] what can be allocated only once implements this and looks up a pod's settings in
    /// [`PerProfile`]: two instances would allocate independently of each other. Returns `None` if the plugin
    /// does not support this; other arguments then create another instance.
    fn join(
        &mut self,
        _profile: &str,
        _args: Option<&serde_json::Value>,
        _context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        None
    }
}

/// Declares [`Roles`] and [`AnyPlugin`] from the list of roles: `shared` roles, none of whose methods changes
/// the plugin, and `exclusive` ones.
macro_rules! roles {
    (
        shared { $($shared:ident: $Shared:ident,)* }
        exclusive { $($exclusive:ident: $Exclusive:ident,)* }
    ) => {
        /// The roles of plugins of type `P`.
        #[derive(Debug)]
        pub struct Roles<P> {
            $($shared: Option<fn(&P) -> &dyn $Shared>,)*
            $($exclusive: Option<fn(&mut P) -> &mut dyn $Exclusive>,)*
        }

        impl<P> Roles<P> {
            /// Returns an empty set of roles.
            #[must_use]
            pub const fn none() -> Self {
                Self { $($shared: None,)* $($exclusive: None,)* }
            }
            $(
                #[doc = concat!("Adds [`", stringify!($Shared), "`].")]
                #[must_use]
                pub const fn $shared(mut self) -> Self where P: $Shared {
                    self.$shared = Some(|plugin| plugin);
                    self
                }
            )*
            $(
                #[doc = concat!("Adds [`", stringify!($Exclusive), "`].")]
                #[must_use]
                pub const fn $exclusive(mut self) -> Self where P: $Exclusive {
                    self.$exclusive = Some(|plugin| plugin);
                    self
                }
            )*
        }

        /// Object-safe form of [`Plugin`], implemented for every plugin; the engine holds plugins as this.
        /// The accessor of a role that the plugin does not have returns `None`.
        pub trait AnyPlugin: Send + Sync {
            /// Returns [`Plugin::name`].
            fn name(&self) -> &'static str;
            /// Returns [`Plugin::points`].
            fn points(&self) -> Points;
            /// Returns [`Plugin::holders`].
            fn holders(&self) -> Holders;
            /// Calls [`Plugin::join`].
            fn join(
                &mut self,
                profile: &str,
                args: Option<&serde_json::Value>,
                context: &BuildContext,
            ) -> Option<Result<(), BuildError>>;
            $(
                #[doc = concat!("Returns the plugin as [`", stringify!($Shared), "`].")]
                fn $shared(&self) -> Option<&dyn $Shared>;
            )*
            $(
                #[doc = concat!("Returns the plugin as [`", stringify!($Exclusive), "`].")]
                fn $exclusive(&mut self) -> Option<&mut dyn $Exclusive>;
            )*
        }

        impl<P: Plugin> AnyPlugin for P {
            fn name(&self) -> &'static str {
                Plugin::name(self)
            }
            fn points(&self) -> Points {
                Plugin::points(self)
            }
            fn holders(&self) -> Holders {
                Plugin::holders(self)
            }
            fn join(
                &mut self,
                profile: &str,
                args: Option<&serde_json::Value>,
                context: &BuildContext,
            ) -> Option<Result<(), BuildError>> {
                Plugin::join(self, profile, args, context)
            }
            $(
                fn $shared(&self) -> Option<&dyn $Shared> {
                    const { P::ROLES.$shared }.map(|role| role(self))
                }
            )*
            $(
                fn $exclusive(&mut self) -> Option<&mut dyn $Exclusive> {
                    const { P::ROLES.$exclusive }.map(|role| role(self))
                }
            )*
        }
    };
}

roles! {
    shared {
        inputs: Inputs,
        queue_hints: QueueHints,
        sign: Sign,
        pre_enqueue: PreEnqueue,
        pre_filter: PreFilter,
        filter: Filter,
        pre_score: PreScore,
        score: Score,
        release: Release,
        alignment: Alignment,
        volatile: Volatile,
        post_filter: PostFilter,
        protection: Protection,
        planning: Planning,
        pre_bind: PreBind,
        bind: Bind,
        explain: Explain,
    }
    exclusive {
        object_events: ObjectEvents,
        pod_events: PodEvents,
        preparation: Preparation,
        tick: Tick,
        reserve: Reserve,
        post_filter_transformer: PostFilterTransformer,
        post_bind: PostBind,
        grouping: Grouping,
        permit: Permit,
        metric_source: MetricSource,
    }
}

/// A boxed plugin, as factories return it.
pub type BoxedPlugin = Box<dyn AnyPlugin>;

#[cfg(test)]
mod tests {
    use super::*;

    struct Judge;

    impl Plugin for Judge {
        const ROLES: Roles<Self> = Roles::none().filter();

        fn name(&self) -> &'static str {
            "Judge"
        }
        fn points(&self) -> Points {
            Points::FILTER
        }
    }

    impl Filter for Judge {}
    impl Score for Judge {}

    #[test]
    fn accessors_return_the_listed_roles_only() {
        let plugin: BoxedPlugin = Box::new(Judge);
        assert!(plugin.filter().is_some());
        assert!(plugin.score().is_none(), "implemented and not listed");
        assert!(plugin.sign().is_none());
        assert_eq!((plugin.name(), plugin.points()), ("Judge", Points::FILTER));
    }
}
