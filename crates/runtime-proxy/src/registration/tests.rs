use super::*;

fn registered_as(dir: &Directory, name: &str) -> Option<Registration> {
    let (_, registration) = dir.files.get(std::ffi::OsStr::new(name))?;
    registration.as_deref().cloned()
}

fn at(endpoint: &str, policy: Policy, hooks: &[&str]) -> Registration {
    Registration {
        endpoint: endpoint.into(),
        policy,
        hooks: hooks.iter().map(|hook| (*hook).to_owned()).collect(),
    }
}

#[test]
fn koordlet_registration_is_parsed() {
    let text = b"{\n\t\"remote-endpoint\": \"/var/run/koordlet/koordlet.sock\",\n\t\"failure-policy\": \"Ignore\",\n\t\"runtime-hooks\": [\n\t\t\"PreRunPodSandbox\",\n\t\t\"PreRemoveRunPodSandbox\"\n\t]\n}";
    assert_eq!(
        parse(text).unwrap(),
        at(
            "/var/run/koordlet/koordlet.sock",
            Policy::Ignore,
            &["PreRunPodSandbox", "PreRemoveRunPodSandbox"]
        )
    );
}

#[test]
fn a_registration_without_a_socket_is_none() {
    let text = br#"{"remote-endpoint":"unix:///a","failure-policy":"fail","runtime-hooks":null}"#;
    assert_eq!(parse(text).unwrap(), at("/a", Policy::Ignore, &[]));
    for (text, says) in [
        (r#"{"remote-endpoint":"#, "EOF"),
        ("{}", "remote-endpoint: \"\" is not"),
        (r#"{"remote-endpoint":"tcp://1"}"#, "\"tcp://1\" is not"),
    ] {
        let error = parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn files_are_read_again_when_they_changed() {
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    let mut dir = Directory::new(temp.path().to_owned());
    let first = r#"{"remote-endpoint":"/one"}"#;
    fs::write(path("a.json"), first).unwrap();
    fs::write(path("bjson"), r#"{"remote-endpoint":"/b"}"#).unwrap();
    fs::write(path("c.json.tmp"), first).unwrap();
    fs::write(path("d.json"), "").unwrap();
    fs::create_dir(path("e.json")).unwrap();
    dir.scan().unwrap();
    assert_eq!(
        registered_as(&dir, "a.json"),
        Some(at("/one", Policy::Ignore, &[]))
    );
    assert_eq!(
        registered_as(&dir, "bjson"),
        Some(at("/b", Policy::Ignore, &[]))
    );
    let names: Vec<_> = dir.files.keys().collect();
    assert_eq!(names, ["a.json", "bjson", "d.json"]);
    assert_eq!(
        registered_as(&dir, "d.json"),
        None,
        "never read, so it has no registration"
    );

    // Half a file keeps the last registration, and a whole one replaces it.
    fs::write(path("a.json"), &first[..10]).unwrap();
    dir.scan().unwrap();
    assert_eq!(
        registered_as(&dir, "a.json"),
        Some(at("/one", Policy::Ignore, &[]))
    );
    fs::write(path("a.json"), r#"{"remote-endpoint":"/two!"}"#).unwrap();
    dir.scan().unwrap();
    assert_eq!(
        registered_as(&dir, "a.json"),
        Some(at("/two!", Policy::Ignore, &[]))
    );

    // A replacement with the same time is found by its inode.
    let modified = fs::metadata(path("a.json")).unwrap().modified().unwrap();
    fs::write(path("x"), r#"{"remote-endpoint":"/six!"}"#).unwrap();
    fs::File::options()
        .write(true)
        .open(path("x"))
        .unwrap()
        .set_modified(modified)
        .unwrap();
    fs::rename(path("x"), path("a.json")).unwrap();
    fs::remove_file(path("bjson")).unwrap();
    dir.scan().unwrap();
    assert_eq!(
        registered_as(&dir, "a.json"),
        Some(at("/six!", Policy::Ignore, &[]))
    );
    assert_eq!(dir.files.len(), 2);
}

#[test]
fn a_file_without_end_is_not_read() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("a.json");
    fs::File::create(&file)
        .unwrap()
        .set_len(MAX_FILE_SIZE + 1)
        .unwrap();
    assert!(matches!(read(&file), Err(RegistrationError::Large)));
}
