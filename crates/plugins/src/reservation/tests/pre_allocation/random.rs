//! Random events for the index of pre-allocatable pods.

use super::*;

#[derive(Debug, Clone)]
enum Move {
    Run(u8, u8, bool),
    Relabel(u8, u8, bool),
    Gone(u8),
    Node(u8, bool),
    Want(u8, u8, bool),
    Rename(u8, u8),
    Unwant(u8),
    /// Deleted and created again between two events.
    Anew(u8, u8, bool),
}

/// Applies random changes of pods of two applications, some of them pre-allocatable, and of nodes and
/// reservations. Builds with assertions compare the index with a scan of all pods at every attempt.
#[test]
fn pre_allocatable_index_stays_exact() {
    use proptest::prelude::*;
    let step = || {
        let (pod, app, on) = (0..6_u8, 0..2_u8, any::<bool>());
        prop_oneof![
            4 => (pod.clone(), app.clone(), on).prop_map(|(p, a, on)| Move::Run(p, a, on)),
            2 => (pod.clone(), app.clone(), on).prop_map(|(p, a, on)| Move::Relabel(p, a, on)),
            2 => pod.clone().prop_map(Move::Gone),
            1 => (0..3_u8, on).prop_map(|(n, on)| Move::Node(n, on)),
            3 => (0..3_u8, app.clone(), on).prop_map(|(r, a, on)| Move::Want(r, a, on)),
            1 => (0..3_u8, app.clone()).prop_map(|(r, a)| Move::Rename(r, a)),
            1 => (0..3_u8).prop_map(Move::Unwant),
            1 => (0..3_u8, app, on).prop_map(|(r, a, on)| Move::Anew(r, a, on)),
        ]
    };
    let absorbed_count = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(32));
    let steps = prop::collection::vec(step(), 1..50);
    let ended = runner.run(&steps, |steps| {
        let args = json!({"preAllocationConfig": {"enableClusterMode": true}});
        let mut world = ReservationWorld::with(&args, &[]);
        for node in 0..3 {
            world.node(&format!("n{node}"), 8);
        }
        let labels = |app: u8, offers: bool| json!({"metadata": {"labels": {"app": format!("a{app}"), POD_PRE_ALLOCATABLE: offers.to_string()}}});
        let want = |world: &mut ReservationWorld, r: u8, app: u8, cluster: bool| {
            let mut change = spec_of(cluster, false, true);
            change["spec"]["allocatePolicy"] = json!("Restricted");
            world.reserve(&format!("r{r}"), "4", &format!("a{app}"), change);
        };
        for step in steps {
            match step {
                Move::Run(p, app, offers) if !world.pods.contains_key(&format!("p{p}")) => {
                    let mut change = labels(app, offers);
                    merge(
                        &mut change,
                        &json!({"spec": {"nodeName": format!("n{}", p % 3)}}),
                    );
                    world.pod(&format!("p{p}"), "2", "", change);
                }
                Move::Relabel(p, app, offers) => {
                    if let Some(pod) = world.pods.get_mut(&format!("p{p}")) {
                        merge(pod, &labels(app, offers));
                        world.deliver(&format!("p{p}"));
                    }
                }
                Move::Gone(p) => world.pod_gone(&format!("p{p}")),
                Move::Node(n, false) => world.node_gone(&format!("n{n}")),
                Move::Node(n, true) => world.node(&format!("n{n}"), 8),
                Move::Want(r, app, cluster)
                    if !world.reservations.contains_key(&format!("r{r}")) =>
                {
                    want(&mut world, r, app, cluster);
                }
                Move::Rename(r, app) if world.reservations.contains_key(&format!("r{r}")) => {
                    let owners = json!([{"labelSelector": {"matchLabels": {"app": format!("a{app}")}}}]);
                    world.edit(&format!("r{r}"), json!({"spec": {"owners": owners}}));
                }
                Move::Unwant(r) => world.unreserve(&format!("r{r}")),
                Move::Anew(r, app, cluster) => want(&mut world, r, app, cluster),
                _ => {}
            }
            world.later(20);
            prop_assert!(world.engine.cluster().nodes().books_balance());
        }
        let owned = |pod: &Value| ReservationWorld::owned_by(pod).is_some();
        let owners = world.pods.values().filter(|pod| owned(pod)).count();
        absorbed_count.set(absorbed_count.get() + owners);
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
    assert!(absorbed_count.get() > 10, "{absorbed_count:?}");
}
