use super::*;
use koord_rpc::cri;
use proptest::prelude::*;
use prost::Message as _;

fn text() -> impl Strategy<Value = String> {
    "[a-z]{0,3}"
}

fn map() -> impl Strategy<Value = Entries> {
    proptest::collection::btree_map(text(), text(), 0..4)
}

prop_compose! {
    fn request()(
        parent in text(),
        annotations in map(),
        unified in map(),
        envs in proptest::collection::vec((text(), text()), 0..5),
        numbers in any::<[i16; 3]>(),
        cpus in text(),
        linux in any::<bool>(),
    ) -> cri::CreateContainerRequest {
        let [cpu_quota, cpu_shares, oom_score_adj] = numbers.map(i64::from);
        let resources = cri::LinuxContainerResources {
            cpu_quota, cpu_shares, oom_score_adj, unified, cpuset_cpus: cpus, ..Default::default()
        };
        cri::CreateContainerRequest {
            pod_sandbox_id: "p".to_owned(),
            config: Some(cri::ContainerConfig {
                envs: envs
                    .into_iter()
                    .map(|(key, value)| cri::KeyValue { key, value: value.into() })
                    .collect(),
                annotations,
                linux: linux.then(|| cri::LinuxContainerConfig {
                    resources: Some(resources),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            sandbox_config: Some(cri::PodSandboxConfig {
                linux: Some(cri::LinuxPodSandboxConfig {
                    cgroup_parent: parent,
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }
    }
}

proptest! {
    /// Verifies an echo: koordlet returns all fields of the request, and if it changes none, no byte changes.
    #[test]
    fn an_echo_changes_no_byte(request in request()) {
        let bytes = Bytes::from(request.encode_to_vec());
        let config = request.config.unwrap();
        let envs = config.envs.into_iter();
        let resources = config.linux.and_then(|linux| linux.resources);
        let resources = resources.as_ref().map(crate::merge::resources);
        let answer = ContainerResourceHookResponse {
            container_annotations: config.annotations,
            container_envs: envs
                .map(|env| (env.key, String::from_utf8(env.value).unwrap()))
                .collect(),
            pod_cgroup_parent: request.sandbox_config.unwrap().linux.unwrap().cgroup_parent,
            container_resources: resources.clone(),
        };
        let applied = create_container(&bytes, &answer, resources.as_ref()).unwrap();
        prop_assert_eq!(applied, bytes);
    }
}

#[test]
fn a_request_without_resources_gets_those_of_the_answer() {
    let request = cri::CreateContainerRequest {
        config: Some(cri::ContainerConfig::default()),
        ..Default::default()
    };
    let new_resources = LinuxContainerResources {
        cpu_quota: -1,
        ..Default::default()
    };
    let answer = ContainerResourceHookResponse::default();
    let bytes = Bytes::from(request.encode_to_vec());
    let applied = create_container(&bytes, &answer, Some(&new_resources)).unwrap();
    let applied = cri::CreateContainerRequest::decode(applied).unwrap();
    let linux = applied.config.unwrap().linux.unwrap();
    assert_eq!(linux.resources.unwrap().cpu_quota, -1);
    assert_eq!(applied.sandbox_config, None);
}
