//! A hook server's registration, from any bytes: an error, or a socket's absolute path, a policy and
//! hooks that are the same when they are written and read again.

#![no_main]

use koord_api::hookserver::HookServer;
use koord_runtime_proxy::registered;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let read = HookServer::from_json(data).ok();
    if let Some(server) = &read {
        let text = server.to_json().expect("JSON");
        assert_eq!(
            HookServer::from_json(&text).expect("what was written"),
            *server
        );
    }
    let Some((endpoint, policy, hooks)) = registered(data) else {
        // Then it names no socket, if it is one at all.
        assert!(read.is_none_or(|server| server.socket().is_none()));
        return;
    };
    assert!(endpoint.is_absolute());
    let server = read.expect("a registration");
    let again = HookServer {
        remote_endpoint: endpoint.to_str().expect("text").to_owned(),
        failure_policy: policy.name().to_owned(),
        runtime_hooks: hooks,
    };
    assert_eq!(again.policy(), server.policy());
    let text = again.to_json().expect("JSON");
    let (path, _, hooks) = registered(&text).expect("what was written");
    assert_eq!((path, hooks), (endpoint, again.runtime_hooks));
});
