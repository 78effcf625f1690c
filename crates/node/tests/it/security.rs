//! Tests for the rights of pods on the machine.

use crate::support::{World, container};
use koord_host::MountNamespace;
use koord_node::{ExecOptions, Execs, Options, RIGHTS_ANNOTATION};
use serde_json::{Value, json};

/// Returns whether pods can be restricted on this machine; records a skipped test if not.
fn can_restrict() -> bool {
    if !koord_host::is_root() {
        koord_host::testing::skip("root", "other users cannot be taken");
        return false;
    }
    match MountNamespace::new(&[], &[]) {
        Ok(_) => true,
        Err(error) => {
            koord_host::testing::skip("mount-namespace", error);
            false
        }
    }
}

/// Returns a script that prints its own identity and each protected thing that it reached.
fn attack(data_dir: &std::path::Path) -> String {
    format!(
        "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr '\\t' ' '; \
         cat {0}/state.json {0}/lock && echo READ; ls {0} && echo LISTED; \
         echo x > /etc/koord-attack && echo WROTE; rm -f /etc/koord-attack; \
         echo x > /proc/sys/kernel/domainname && echo TUNED; \
         mkdir /sys/fs/cgroup/koord-attack && echo ESCAPED; \
         mount -t tmpfs none /mnt && echo MOUNTED; \
         echo x > /tmp/koord-attack-$$ && echo TEMPORARY; rm -f /tmp/koord-attack-$$; echo over",
        data_dir.display()
    )
}

fn spec(script: &str, own: &Value, of_pod: &Value) -> Value {
    json!({"restartPolicy": "Never", "securityContext": of_pod, "containers": [{
        "name": "c", "image": "host", "command": ["/bin/sh", "-c", script], "securityContext": own,
    }]})
}

const NO_CAPABILITIES: &str = "0000000000000000";

#[tokio::test(flavor = "multi_thread")]
async fn pod_without_settings_reaches_nothing_of_the_host() {
    if !can_restrict() {
        return;
    }
    let world = World::new().await;
    let execs = Execs::default();
    let node = world
        .start_with(Options {
            execs: Some(execs.clone()),
            ..world.options()
        })
        .await;
    let script = attack(world.dir.path());
    let nothing = json!({});
    world.create("p", spec(&script, &nothing, &nothing)).await;
    world.wait_for_phase("p", "Succeeded").await;
    let log = world.log("p").await;
    let expected = format!(
        "Uid: 0 0 0 0\nGid: 0 0 0 0\nGroups: \nCapBnd: {NO_CAPABILITIES}\nCapEff: \
         {NO_CAPABILITIES}\nNoNewPrivs: 1\nTEMPORARY\nover\n"
    );
    let plain = |text: &str| {
        let lines = text.lines().filter(|line| {
            let first = line.split([':', ' ']).next().unwrap_or_default();
            // The second line of an error message is indented.
            !["", "cat", "ls", "mkdir", "mount", "rm", "/bin/sh", "sh"].contains(&first)
        });
        let mut lines: Vec<&str> = lines.map(str::trim_end).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    assert_eq!(plain(&log), plain(&expected), "{log}");

    // Commands in the container have no more rights.
    world
        .create("q", spec("sleep 1000", &nothing, &nothing))
        .await;
    world.wait_for_phase("q", "Running").await;
    let options = ExecOptions {
        command: vec!["/bin/sh".into(), "-c".into(), script],
        ..ExecOptions::default()
    };
    let mut session = execs.start("default", "q", "c", options).await.unwrap();
    let mut text = Vec::new();
    while let Some((is_error, piece)) = session.output.recv().await {
        if !is_error {
            text.extend_from_slice(&piece);
        }
    }
    let text = String::from_utf8(text).unwrap();
    assert_eq!(plain(&text), plain(&expected), "{text}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn privileged_and_trusted_pods_have_the_rights_of_the_node() {
    if !can_restrict() {
        return;
    }
    let world = World::new().await;
    let script = format!(
        "ls {}/lock; ls /run >/dev/null && echo run",
        world.dir.path().display()
    );
    let node = world.start().await;
    let nothing = json!({});
    let privileged = json!({"privileged": true});
    world
        .create("p", spec(&script, &privileged, &nothing))
        .await;
    world.wait_for_phase("p", "Succeeded").await;
    assert!(world.log("p").await.contains("/lock\nrun"));
    node.stop().await;

    let options = Options {
        trusted_pods: true,
        ..world.options()
    };
    let node = world.start_with(options).await;
    world.create("q", spec(&script, &nothing, &nothing)).await;
    world.wait_for_phase("q", "Succeeded").await;
    let nodes: koord_kube::Api<k8s_openapi::api::core::v1::Node> =
        koord_kube::Api::all(world.client.clone());
    let node_object = nodes.get(crate::support::NODE).await.unwrap();
    let rights = &node_object.metadata.annotations.unwrap()[RIGHTS_ANNOTATION];
    assert!(rights.contains("--trusted-pods"), "{rights}");
    let none = json!({"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false});
    world
        .create("r", spec(&attack(world.dir.path()), &none, &nothing))
        .await;
    world.wait_for_phase("r", "Succeeded").await;
    let log = world.log("r").await;
    for done in [
        "READ",
        "LISTED",
        "WROTE",
        "TUNED",
        "ESCAPED",
        "MOUNTED",
        "TEMPORARY",
    ] {
        assert!(!log.contains(done), "{done}: {log}");
    }
    assert!(
        log.contains("NoNewPrivs: 1") && log.contains("over"),
        "{log}"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_and_capabilities_of_a_pod_are_the_requested_ones() {
    if !can_restrict() {
        return;
    }
    let world = World::new().await;
    let node = world.start().await;
    let script = attack(world.dir.path());
    let own = json!({"runAsUser": 1234, "runAsGroup": 56, "allowPrivilegeEscalation": true});
    let of_pod = json!({"supplementalGroups": [78], "fsGroup": 90});
    world.create("p", spec(&script, &own, &of_pod)).await;
    world.wait_for_phase("p", "Succeeded").await;
    let log = world.log("p").await;
    for line in [
        "Uid: 1234 1234 1234 1234",
        "Gid: 56 56 56 56",
        "Groups: 78 90",
        "NoNewPrivs: 0",
        &format!("CapEff: {NO_CAPABILITIES}"),
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let own = json!({"capabilities": {"add": ["KILL", "CHOWN"], "drop": ["CHOWN"]}});
    world.create("q", spec(&script, &own, &json!({}))).await;
    world.wait_for_phase("q", "Succeeded").await;
    let log = world.log("q").await;
    assert!(log.contains("CapEff: 0000000000000020"), "{log}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_honored_are_refused_by_name() {
    let world = World::new().await;
    let node = world.start().await;
    let own = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    world.create("p", spec("true", &own, &json!({}))).await;
    let waits = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.as_ref().map(|status| &status.container_statuses);
        statuses.is_some_and(Option::is_some) && !container(pod)["state"]["waiting"].is_null()
    };
    let pod = world
        .pod_when("p", |pod| {
            waits(pod)
                && container(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        })
        .await;
    let state = &container(&pod)["state"]["waiting"];
    let message = state["message"].as_str().unwrap();
    assert!(
        message.contains("securityContext.seccompProfile: "),
        "{message}"
    );
    world.event("CreateContainerConfigError").await;
    node.stop().await;
}
