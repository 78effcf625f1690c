//! The generated code matches the definitions, and encodes messages like other implementations.

use std::collections::BTreeMap;
use std::path::Path;

use koord_rpc::{cri, hooks, nri};
use prost::Message;

use crate::generate;

#[test]
fn generated_code_matches_the_definitions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut definitions: Vec<String> = std::fs::read_dir(root.join("proto"))
        .unwrap()
        .filter_map(|file| {
            Some(
                file.ok()?
                    .file_name()
                    .to_str()?
                    .strip_suffix(".proto")?
                    .into(),
            )
        })
        .collect();
    definitions.sort();
    assert_eq!(definitions, generate::DEFINITIONS);
    for name in generate::DEFINITIONS {
        let written = root.join(format!("src/generated/{name}.rs"));
        let written = std::fs::read_to_string(written).unwrap();
        assert!(
            generate::render(root, name).unwrap() == written,
            "{name}: cargo run -p koord-rpc --example generate"
        );
    }
}

/// One tag per line, like in the tables of the interfaces: `tag<<3 | kind`, length, content.
#[test]
fn hook_request_is_encoded_like_its_table() {
    let request = hooks::ContainerResourceHookRequest {
        pod_meta: Some(hooks::PodSandboxMetadata {
            name: "p".into(),
            ..Default::default()
        }),
        container_resources: Some(hooks::LinuxContainerResources {
            cpu_quota: -1,
            cpuset_cpus: "0-1".into(),
            ..Default::default()
        }),
        container_envs: BTreeMap::from([("K".into(), "V".into())]),
        ..Default::default()
    };
    let mut expected = vec![0x0a, 3, 0x0a, 1, b'p'];
    expected.extend([0x22, 16, 0x10]);
    expected.extend([0xff; 9]);
    expected.extend([1, 0x32, 3, b'0', b'-', b'1']);
    expected.extend([0x4a, 6, 0x0a, 1, b'K', 0x12, 1, b'V']);
    assert_eq!(request.encode_to_vec(), expected);
}

#[test]
fn an_nri_adjustment_begins_at_tag_two() {
    let adjustment = nri::ContainerAdjustment {
        annotations: BTreeMap::from([("a".into(), "b".into())]),
        linux: Some(nri::LinuxContainerAdjustment {
            resources: Some(nri::LinuxResources {
                cpu: Some(nri::LinuxCpu {
                    shares: Some(nri::OptionalUInt64 { value: 1024 }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            oom_score_adj: Some(nri::OptionalInt { value: 5 }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let expected = [
        0x12, 6, 0x0a, 1, b'a', 0x12, 1, b'b', // annotations
        0x32, 13, // linux
        0x12, 7, 0x12, 5, 0x0a, 3, 0x08, 0x80, 0x08, // resources.cpu.shares
        0x22, 2, 0x08, 5, // oom_score_adj
    ];
    assert_eq!(adjustment.encode_to_vec(), expected);
}

#[test]
fn events_of_nri_have_the_numbers_of_its_mask() {
    use nri::Event::*;
    let koordlet = [
        RunPodSandbox,
        RemovePodSandbox,
        CreateContainer,
        UpdateContainer,
    ];
    let mask = koordlet
        .iter()
        .fold(0, |mask, event| mask | 1 << (*event as i32 - 1));
    assert_eq!(mask, 141);
    assert_eq!(ValidateContainerAdjustment as i32, 14);
    assert_eq!(Last as i32, 15);
}

/// Shows why a proxy must not decode and encode what it passes on.
#[test]
fn unknown_field_is_lost_in_decoding() {
    let request = cri::RunPodSandboxRequest {
        runtime_handler: "runc".into(),
        ..Default::default()
    };
    let mut newer = request.encode_to_vec();
    // Tag 9999, two bytes.
    newer.extend([0xfa, 0xf0, 0x04, 2, 1, 2]);
    let decoded = cri::RunPodSandboxRequest::decode(newer.as_slice()).unwrap();
    assert_eq!(decoded, request);
    assert_eq!(decoded.encode_to_vec().len() + 6, newer.len());
}

#[test]
fn cri_has_the_streaming_lists() {
    let response = cri::StreamContainersResponse::default();
    assert!(response.containers.is_empty());
    assert_eq!(
        cri::runtime_service_server::SERVICE_NAME,
        "runtime.v1.RuntimeService"
    );
    assert_eq!(
        hooks::runtime_hook_service_server::SERVICE_NAME,
        "runtime.v1alpha1.RuntimeHookService"
    );
}
