//! A hook server's answer, put into a request of the CRI: what a decoder took for a request stays one,
//! says what the answer says, and does not change when the answer is put into it again.

#![no_main]

use bytes::Bytes;
use koord_rpc::{cri, hooks};
use koord_runtime_proxy::fuzzed;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Some((&[which, length, ..], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (answer, request) = rest.split_at(usize::from(length).min(rest.len()));
    let request = Bytes::copy_from_slice(request);
    match which % 3 {
        0 => {
            let Ok(answer) = hooks::PodSandboxHookResponse::decode(answer) else {
                return;
            };
            let Some(changed) = fuzzed::run_pod(&request, &answer) else {
                return;
            };
            assert_eq!(fuzzed::run_pod(&changed, &answer).as_ref(), Some(&changed));
            if cri::RunPodSandboxRequest::decode(request).is_err() {
                return;
            }
            let decoded = cri::RunPodSandboxRequest::decode(changed).expect("a request");
            let config = decoded.config.unwrap_or_default();
            for (key, value) in &answer.labels {
                assert_eq!(config.labels.get(key), Some(value));
            }
        }
        1 => {
            let Ok(answer) = hooks::ContainerResourceHookResponse::decode(answer) else {
                return;
            };
            let Some(changed) = fuzzed::create_container(&request, &answer) else {
                return;
            };
            let again = fuzzed::create_container(&changed, &answer);
            assert_eq!(again.as_ref(), Some(&changed));
            if cri::CreateContainerRequest::decode(request).is_err() {
                return;
            }
            let decoded = cri::CreateContainerRequest::decode(changed).expect("a request");
            let config = decoded.config.unwrap_or_default();
            for (key, value) in &answer.container_annotations {
                assert_eq!(config.annotations.get(key), Some(value));
            }
            if let Some(wanted) = &answer.container_resources {
                let resources = config.linux.unwrap_or_default().resources;
                let resources = resources.unwrap_or_default();
                assert_eq!(resources.cpu_shares, wanted.cpu_shares);
                assert_eq!(resources.cpuset_cpus, wanted.cpuset_cpus);
            }
        }
        _ => {
            let Ok(answer) = hooks::ContainerResourceHookResponse::decode(answer) else {
                return;
            };
            let Some(changed) = fuzzed::update_container(&request, &answer) else {
                return;
            };
            let again = fuzzed::update_container(&changed, &answer);
            assert_eq!(again.as_ref(), Some(&changed));
            if cri::UpdateContainerResourcesRequest::decode(request).is_err() {
                return;
            }
            cri::UpdateContainerResourcesRequest::decode(changed).expect("a request");
        }
    }
});
