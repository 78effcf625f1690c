//! A plugin, which is what its roles are.

#[cfg(doc)]
use super::PerProfile;
use super::{
    Alignment, Bind, BuildContext, BuildError, Filter, Grouping, Holders, Inputs, Insight, Metered,
    ObjectEvents, Permit, Planning, PodEvents, Points, PostBind, PostFilter, PostFilterTransformer,
    PreBind, PreEnqueue, PreFilter, PreScore, Preparation, Protection, QueueHints, Release,
    Reserve, Score, Sign, Tick, Volatile,
};

/// A scheduling rule. One instance serves all profiles that give it the same arguments; one that keeps books of
/// what it gives away serves all profiles there are ([`Plugin::join`]).
///
/// What it does is the sum of its [`Roles`], one trait each. All methods of all roles are called from the one
/// task that owns the engine; those with `&self` may be called for several nodes at a time.
pub trait Plugin: Send + Sync + Sized + 'static {
    /// The roles that the plugin has: what it implements and does not list is never called.
    const ROLES: Roles<Self>;
    /// The name in configuration files and metrics.
    fn name(&self) -> &'static str;
    /// The extension points at which configurations may list it, which are those of upstream's plugin: at one
    /// for which it has no role, there is nothing to do here.
    fn points(&self) -> Points;
    /// What it makes of holders. At [`Holders::Judged`], it is asked at the points before reserve,
    /// and by [`Insight::explain`]; at [`Holders::Booked`], also at the points from there on, and told
    /// by [`PodEvents::on_pod`], [`PodEvents::on_assigned`], [`PodEvents::on_updated`] and
    /// [`PodEvents::on_unassigned`].
    fn holders(&self) -> Holders {
        Holders::Ignored
    }
    /// Takes on the arguments of one more profile. A plugin that books in [`Reserve::reserve`] what can
    /// be given once does so, and asks [`PerProfile`] what applies to a pod: of two instances, neither
    /// would know what the other gave away. `None`: other arguments make another instance.
    fn join(
        &mut self,
        _profile: &str,
        _args: Option<&serde_json::Value>,
        _context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        None
    }
}

/// Declares [`Roles`] and [`AnyPlugin`] from a list of the roles there are: the roles that are shared, of which
/// no method changes the plugin, and the others.
macro_rules! roles {
    (
        shared { $($shared:ident: $Shared:ident,)* }
        exclusive { $($exclusive:ident: $Exclusive:ident,)* }
    ) => {
        /// Which roles plugins of type `P` have.
        #[derive(Debug)]
        pub struct Roles<P> {
            $($shared: Option<fn(&P) -> &dyn $Shared>,)*
            $($exclusive: Option<fn(&mut P) -> &mut dyn $Exclusive>,)*
        }

        impl<P> Roles<P> {
            /// Returns no roles, to be added to.
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

        /// A [`Plugin`] of whatever type, as the engine has it: all plugins are, and none implements it. A role
        /// that the plugin has not is `None`.
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
        insight: Insight,
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
        metered: Metered,
    }
}

/// A plugin as it is built.
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
