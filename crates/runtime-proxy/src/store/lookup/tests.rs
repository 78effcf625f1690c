use super::*;

#[test]
fn the_parent_of_a_group_is_its_pods() {
    for (path, wanted) in [
        ("/kubepods/burstable/pod1/abc", "/kubepods/burstable/pod1"),
        (
            "kubepods-besteffort-pod1_2.slice:cri-containerd:abc",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice",
        ),
        ("", ""),
        ("abc", ""),
    ] {
        assert_eq!(parent(path), wanted);
    }
}

#[test]
fn info_of_another_form_is_left_out() {
    for text in [
        "",
        "[",
        "{\"config\":3}",
        "{\"runtimeSpec\":{\"process\":{\"env\":{}}}}",
    ] {
        let verbose = BTreeMap::from([("info".to_owned(), text.to_owned())]);
        let status = cri::ContainerStatus {
            id: "c".to_owned(),
            metadata: Some(cri::ContainerMetadata::default()),
            ..Default::default()
        };
        let request = container(status, &verbose);
        assert_eq!(request.container_meta.unwrap().id, "c");
        assert_eq!(request.container_envs, BTreeMap::new());
    }
}
