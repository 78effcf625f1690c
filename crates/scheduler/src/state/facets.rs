//! Values that plugins derive from a pod, one per type.

use super::ShapeId;
use std::any::Any;
use std::sync::OnceLock;

/// Values derived from a pod, one per type. Each is computed on first use and kept as long as this state of
/// the pod.
#[derive(Default)]
pub(super) struct Facets {
    first: Link,
    /// The shape, with the index of the profile that it was computed for.
    shape: OnceLock<(usize, Option<ShapeId>)>,
}

type Link = OnceLock<Box<Facet>>;

struct Facet {
    value: Box<dyn Any + Send + Sync>,
    next: Link,
}

impl Facets {
    pub(super) fn get<T: Any + Send + Sync>(&self, read: impl Fn() -> T) -> &T {
        let mut link = &self.first;
        while let Some(facet) = link.get() {
            match facet.value.downcast_ref() {
                Some(value) => return value,
                None => link = &facet.next,
            }
        }
        let make = || {
            Box::new(Facet {
                value: Box::new(read()),
                next: Link::default(),
            })
        };
        // Compute the value before taking a place in the list: computing it may need other facets.
        let mut computed = Some(make());
        loop {
            let facet = link.get_or_init(|| computed.take().unwrap_or_else(make));
            match facet.value.downcast_ref() {
                Some(value) => return value,
                None => link = &facet.next,
            }
        }
    }

    /// Returns the result of `sign`, cached for the first profile that it is called for.
    pub(super) fn shape(
        &self,
        profile: usize,
        sign: impl Fn() -> Option<ShapeId>,
    ) -> Option<ShapeId> {
        match self.shape.get_or_init(|| (profile, sign())) {
            (cached_profile, shape) if *cached_profile == profile => *shape,
            _ => sign(),
        }
    }
}

/// Clones start empty: a copy is made to be changed, so derived values may not hold for it.
impl Clone for Facets {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Facets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Signature;
    use std::cell::Cell;

    #[test]
    fn each_type_is_read_once_until_the_pod_is_copied() {
        let (facets, reads) = (Facets::default(), Cell::new(0));
        let number = |facets: &Facets| {
            let read = || {
                reads.set(reads.get() + 1);
                7_i32
            };
            *facets.get(read)
        };
        let text = |facets: &Facets| facets.get(|| "seven".to_owned()).clone();
        for _ in 0..2 {
            assert_eq!((number(&facets), &*text(&facets)), (7, "seven"));
        }
        assert_eq!(reads.get(), 1);
        number(&facets.clone());
        assert_eq!(reads.get(), 2);
    }

    #[test]
    fn facet_may_be_computed_from_other_facets() {
        let facets = Facets::default();
        let number = || *facets.get(|| 7_i32);
        assert_eq!(facets.get(|| format!("{}", number())), "7");
        assert_eq!(number(), 7);
    }

    #[test]
    fn shape_is_cached_for_one_profile_until_copy() {
        let (facets, signs) = (Facets::default(), Cell::new(0));
        let shape = |facets: &Facets, profile: usize| {
            let sign = || {
                signs.set(signs.get() + 1);
                let mut signature = Signature::default();
                signature.count(profile);
                (profile != 1).then(|| signature.finish())
            };
            facets.shape(profile, sign)
        };
        let (of_0, of_1, of_2) = (shape(&facets, 0), shape(&facets, 1), shape(&facets, 2));
        assert_eq!((of_0 == of_2, of_1, signs.get()), (false, None, 3));
        assert_eq!(shape(&facets, 0), of_0);
        assert_eq!(signs.get(), 3);
        assert_eq!(shape(&facets.clone(), 0), of_0);
        assert_eq!(signs.get(), 4);
        // That a pod has no shape is cached, too.
        let loner = Facets::default();
        assert_eq!((shape(&loner, 1), shape(&loner, 1)), (None, None));
        assert_eq!(signs.get(), 5);
    }
}
