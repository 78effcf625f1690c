use super::*;
use crate::store::{Index, StoreOptions};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use std::time::Duration;

fn key() -> Vec<u8> {
    rcgen::KeyPair::generate().unwrap().serialize_der()
}

async fn put(store: &Store, plural: &str, namespace: &str, name: &str, uid: &str) {
    let index = Index {
        uid: uid.into(),
        ..Index::default()
    };
    let value = json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}});
    let key = ObjectKey::new(namespace, name);
    store
        .create(TableId::new("", plural), key, value, index)
        .await
        .unwrap();
}

struct TestEnv {
    store: Store,
    clock: Clock,
    key: Vec<u8>,
    tokens: Tokens,
}

impl TestEnv {
    async fn new() -> Self {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let store = Store::open(StoreOptions::memory(clock.clone()))
            .await
            .unwrap();
        put(&store, "serviceaccounts", "apps", "web", "u1").await;
        let key = key();
        let tokens = Tokens::new(&key, store.clone(), clock.clone()).unwrap();
        Self {
            store,
            clock,
            key,
            tokens,
        }
    }

    fn issue(&self, bound: Option<BoundObject>, audiences: &[&str]) -> String {
        let request = TokenSpec {
            namespace: "apps",
            account: "web",
            uid: "u1",
            bound,
            audiences: audiences.iter().map(|&a| a.to_owned()).collect(),
            from: self.clock.now().as_second(),
            seconds: 600,
        };
        self.tokens.issue(request).unwrap()
    }

    fn refuses(&self, token: &str) -> String {
        self.tokens.review(token, &[]).unwrap_err()
    }
}

fn part(token: &str, n: usize) -> Value {
    let part = token.split('.').nth(n).unwrap();
    serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn token_yields_its_user_until_expiry() {
    let world = TestEnv::new().await;
    let token = world.issue(None, &[ISSUER]);
    assert_eq!(part(&token, 0)["alg"], "ES256");
    let claims = part(&token, 1);
    assert_eq!(claims["sub"], "system:serviceaccount:apps:web");
    assert_eq!(claims["iss"], ISSUER);
    assert_eq!(claims["aud"], json!([ISSUER]));
    assert_eq!(
        claims["exp"].as_i64(),
        claims["iat"].as_i64().map(|at| at + 600)
    );
    let of = json!({"namespace": "apps", "serviceaccount": {"name": "web", "uid": "u1"}});
    assert_eq!(claims["kubernetes.io"], of);
    let (user, audiences) = world.tokens.review(&token, &[]).unwrap();
    assert_eq!(audiences, [ISSUER]);
    assert_eq!(
        (user.name.as_str(), user.uid.as_str()),
        ("system:serviceaccount:apps:web", "u1")
    );
    assert!(user.is_in("system:serviceaccounts:apps") && user.is_in("system:authenticated"));
    assert_ne!(token, world.issue(None, &[ISSUER]));
    // A server with the same key, as after a restart.
    let requeue = Tokens::new(&world.key, world.store.clone(), world.clock.clone()).unwrap();
    assert!(requeue.review(&token, &[]).is_ok());
    tokio::time::advance(Duration::from_secs(601)).await;
    for tokens in [&world.tokens, &requeue] {
        let message = tokens.review(&token, &[]).unwrap_err();
        assert_eq!(
            message,
            "[invalid bearer token, service account token has expired]"
        );
    }
    let shown = format!("{:?} {:?}", world.tokens, world.tokens.key);
    assert!(
        !shown.contains(&token) && !shown.contains("pair"),
        "{shown}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_tokens_signed_by_this_key_are_accepted() {
    let world = TestEnv::new().await;
    let token = world.issue(None, &[ISSUER]);
    let [header, claims, signature]: [&str; 3] =
        token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let mut changed = part(&token, 1);
    changed["sub"] = "system:serviceaccount:kube-system:admin".into();
    let changed = BASE64.encode(changed.to_string());
    let none = BASE64.encode(json!({"alg": "none", "kid": part(&token, 0)["kid"]}).to_string());
    let stranger = Tokens::new(&key(), world.store.clone(), world.clock.clone()).unwrap();
    let forged = TestEnv {
        tokens: stranger,
        store: world.store.clone(),
        clock: world.clock.clone(),
        key: Vec::new(),
    };
    for bad in [
        String::new(),
        "made up".to_owned(),
        "..".to_owned(),
        format!("{header}.{changed}.{signature}"),
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{header}.{claims}"),
        format!("{header}.{claims}."),
        format!("{token}.x"),
        format!("{token}{}", "A".repeat(20_000)),
        forged.issue(None, &[ISSUER]),
    ] {
        assert_eq!(world.refuses(&bad), "invalid bearer token", "{bad:.80}");
    }
    assert!(world.tokens.review(&token, &[]).is_ok());
    assert!(Tokens::new(b"no key", world.store.clone(), world.clock.clone()).is_err());
}

#[tokio::test(start_paused = true)]
async fn token_is_valid_for_its_audience() {
    let world = TestEnv::new().await;
    let vault = world.issue(None, &["vault", "other"]);
    let message = world.refuses(&vault);
    assert!(
        message.contains("is invalid for the target audiences"),
        "{message}"
    );
    let requested = ["x".to_owned(), "vault".to_owned()];
    let (_, good_for) = world.tokens.review(&vault, &requested).unwrap();
    assert_eq!(good_for, ["vault"]);
    assert!(
        world
            .tokens
            .review(&world.issue(None, &[ISSUER]), &requested)
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn token_ends_with_its_bound_object() {
    let world = TestEnv::new().await;
    put(&world.store, "pods", "apps", "p", "u2").await;
    let bound = BoundObject::Pod {
        name: "p".to_owned(),
        uid: "u2".to_owned(),
        node: Some(("n1".to_owned(), String::new())),
    };
    let (token, free) = (
        world.issue(Some(bound), &[ISSUER]),
        world.issue(None, &[ISSUER]),
    );
    let (user, _) = world.tokens.review(&token, &[]).unwrap();
    let extra = |key: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        let matches = user.extra.iter().find(|(own, _)| *own == key);
        matches.map(|(_, values)| values.join(","))
    };
    assert_eq!(extra("pod-name").as_deref(), Some("p"));
    assert_eq!(extra("pod-uid").as_deref(), Some("u2"));
    assert_eq!(extra("node-name").as_deref(), Some("n1"));
    assert_eq!(extra("node-uid"), None);
    assert!(extra("credential-id").unwrap().starts_with("JTI="));
    let remove = async |plural: &str, name: &str| {
        let key = ObjectKey::new("apps", name);
        world
            .store
            .delete(TableId::new("", plural), key, None, None)
            .await
            .unwrap();
    };
    remove("pods", "p").await;
    let removed = "[invalid bearer token, service account token has been invalidated]";
    assert_eq!(world.refuses(&token), removed);
    // A pod with the same name but another uid does not count.
    put(&world.store, "pods", "apps", "p", "u3").await;
    assert_eq!(world.refuses(&token), removed);
    assert!(world.tokens.review(&free, &[]).is_ok());
    remove("serviceaccounts", "web").await;
    assert!(world.refuses(&free).contains("not found"));
    put(&world.store, "serviceaccounts", "apps", "web", "u9").await;
    assert!(world.refuses(&free).contains("does not match claim"));
}

#[tokio::test(start_paused = true)]
async fn token_outlives_start_of_deletion_by_a_minute() {
    let world = TestEnv::new().await;
    let now = world.clock.now().to_string();
    let value = json!({"metadata": {"name": "old", "uid": "u5", "deletionTimestamp": now}});
    let index = Index {
        uid: "u5".into(),
        ..Index::default()
    };
    let table = TableId::new("", "secrets");
    let key = ObjectKey::new("apps", "old");
    world.store.create(table, key, value, index).await.unwrap();
    let bound = BoundObject::Secret {
        name: "old".to_owned(),
        uid: "u5".to_owned(),
    };
    let token = world.issue(Some(bound), &[ISSUER]);
    assert!(world.tokens.review(&token, &[]).is_ok());
    tokio::time::advance(Duration::from_secs(62)).await;
    assert!(world.refuses(&token).contains("has been invalidated"));
}

#[test]
fn public_key_verifies_tokens() {
    let der = key();
    let key = SigningKey::from_pkcs8(&der).unwrap();
    let public = key.public();
    let coordinate = |name: &str| BASE64.decode(public[name].as_str().unwrap()).unwrap();
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let pair = rcgen::KeyPair::try_from(der.as_slice()).unwrap();
    assert_eq!(point, rcgen::PublicKeyData::der_bytes(&pair));
    assert_eq!(public["kid"].as_str().map(str::len), Some(43));
}
