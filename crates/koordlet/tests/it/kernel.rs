//! The agent on the real kernel, where the test may write cgroups.

use koord_host::testing::skip;
use koord_host::{Root, features};
use koordlet::bench::{self, Config, Fixture};

#[tokio::test]
async fn the_loop_follows_real_groups() {
    let root = Root::system().unwrap();
    let writable = features::probe(&root).is_ok_and(|features| features.writable);
    if !writable {
        skip("cgroup-write", "cgroups cannot be written here");
        return;
    }
    let config = Config {
        pods: 4,
        containers: 2,
        seconds: 1,
        fake: false,
    };
    {
        let fixture = Fixture::new(&config).unwrap();
        assert!(fixture.is_real());
    }
    let cost = bench::run(&config).await.unwrap();
    assert!(cost.real_cgroups && cost.ticks >= 1, "{cost:?}");
    let left = format!("koord-bench-{}", std::process::id());
    let left = root.cgroup(&left.parse().unwrap());
    assert!(!left.exists(), "the fixture cleans up");
}
