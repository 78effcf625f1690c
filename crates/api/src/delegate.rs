//! Macro that implements `Resource` by delegating the kind to another type.

/// Implements `Resource` for a type whose objects have the kind of `$kind`.
///
/// The metadata is a field, such as in `delegate_resource!(DecodedPod as Pod, 0.metadata)`, or is returned by
/// the methods `meta` and `meta_mut` in braces. A leading type parameter must implement `Resource`.
#[macro_export]
macro_rules! delegate_resource {
    (@implement [$($parameter:tt)*] $type:ty as $kind:ty { $($methods:item)* }) => {
        impl<$($parameter)*> $crate::kube_core::Resource for $type {
            type DynamicType = <$kind as $crate::kube_core::Resource>::DynamicType;
            type Scope = <$kind as $crate::kube_core::Resource>::Scope;

            fn kind(dynamic_type: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <$kind as $crate::kube_core::Resource>::kind(dynamic_type)
            }
            fn group(dynamic_type: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <$kind as $crate::kube_core::Resource>::group(dynamic_type)
            }
            fn version(dynamic_type: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <$kind as $crate::kube_core::Resource>::version(dynamic_type)
            }
            fn plural(dynamic_type: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <$kind as $crate::kube_core::Resource>::plural(dynamic_type)
            }
            $($methods)*
        }
    };
    (@field [$($parameter:tt)*] $type:ty as $kind:ty, $($field:tt)+) => {
        $crate::delegate_resource! {
            @implement [$($parameter)*] $type as $kind {
                fn meta(&self) -> &$crate::kube_core::ObjectMeta {
                    &self.$($field)+
                }
                fn meta_mut(&mut self) -> &mut $crate::kube_core::ObjectMeta {
                    &mut self.$($field)+
                }
            }
        }
    };
    (<$parameter:ident> $type:ty as $kind:ty { $($methods:item)* }) => {
        $crate::delegate_resource! {
            @implement [$parameter: $crate::kube_core::Resource] $type as $kind { $($methods)* }
        }
    };
    (<$parameter:ident> $type:ty as $kind:ty, $($field:tt)+) => {
        $crate::delegate_resource! {
            @field [$parameter: $crate::kube_core::Resource] $type as $kind, $($field)+
        }
    };
    ($type:ty as $kind:ty, $($field:tt)+) => {
        $crate::delegate_resource! { @field [] $type as $kind, $($field)+ }
    };
}
