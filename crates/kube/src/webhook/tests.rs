use super::*;
use serde_json::json;

/// Answers by a function.
struct Says<F>(F);

impl<F: Fn(Request) -> Answer + Send + Sync> Handler for Says<F> {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move { (self.0)(request) })
    }
}

fn webhook(mutating: bool, f: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Webhook {
    Webhook {
        path: "/w",
        mutating,
        handler: Arc::new(Says(f)),
    }
}

fn request(object: Value) -> Request {
    Request {
        uid: "u".to_owned(),
        kind: Kind {
            kind: "Pod".to_owned(),
            version: "v1".to_owned(),
            ..Kind::default()
        },
        resource: Resource::default(),
        sub_resource: String::new(),
        name: String::new(),
        namespace: "default".to_owned(),
        operation: Operation::Create,
        user: User::anonymous(),
        object: Some(object),
        old_object: None,
        dry_run: false,
    }
}

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn patches_name_only_what_differs_and_lead_to_the_new_document() {
    for (old, new, paths) in [
        (json!({"a": 1}), json!({"a": 1}), vec![]),
        (json!({"a": 1}), json!({"a": 2}), vec!["replace /a"]),
        (
            json!({"a": {"b/c": 1, "d~": 2}}),
            json!({"a": {"d~": 3, "e": 1}}),
            vec!["remove /a/b~1c", "replace /a/d~0", "add /a/e"],
        ),
        (json!([1, 2, 3]), json!([0, 1, 2, 3]), vec!["add /0"]),
        (json!([1, 2, 3]), json!([1, 3]), vec!["remove /1"]),
        (
            json!([1, 2, 3, 4]),
            json!([4]),
            vec!["remove /2", "remove /1", "remove /0"],
        ),
        (
            json!([{"x": 1}, 2]),
            json!([{"x": 2}, 2, 3]),
            vec!["replace /0/x", "add /2"],
        ),
        (json!([]), json!([1, 2]), vec!["add /0", "add /1"]),
        (json!([1, 1]), json!([1]), vec!["remove /1"]),
        (json!({"a": []}), json!({"a": {}}), vec!["replace /a"]),
        (json!(null), json!({"a": 1}), vec!["replace "]),
    ] {
        let patch = diff(&old, &new);
        let shown: Vec<String> = patch
            .iter()
            .map(|o| {
                format!(
                    "{} {}",
                    o["op"].as_str().unwrap(),
                    o["path"].as_str().unwrap()
                )
            })
            .collect();
        assert_eq!(shown, paths, "{old} -> {new}");
        let mut patched = old.clone();
        let operations: json_patch::Patch = serde_json::from_value(Value::Array(patch)).unwrap();
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, new, "{old}");
    }
}

#[tokio::test]
async fn an_empty_namespace_is_filled_for_the_handler_and_not_patched() {
    for metadata in [json!({"name": "p"}), json!({"name": "p", "namespace": ""})] {
        let hook = webhook(true, |request| {
            let mut object = request.object.unwrap();
            assert_eq!(object["metadata"]["namespace"], "default");
            object["metadata"]["labels"] = json!({"a": "b"});
            Answer::mutate(object)
        });
        let verdict = hook.review(request(json!({ "metadata": metadata })), LIMIT);
        let expected = json!({"op": "add", "path": "/metadata/labels", "value": {"a": "b"}});
        assert_eq!(verdict.await.unwrap().patch, [expected]);
    }
    // A Namespace is in none.
    let hook = webhook(true, |request| Answer::mutate(request.object.unwrap()));
    let mut namespace = request(json!({"metadata": {"name": "default"}}));
    namespace.kind.kind = "Namespace".to_owned();
    let verdict = hook.review(namespace, LIMIT).await.unwrap();
    assert!(verdict.patch.is_empty());
}

#[tokio::test(start_paused = true)]
async fn handlers_that_do_not_decide_are_failures() {
    let panics = webhook(false, |request| panic!("{}", request.uid));
    let failure = panics.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Panicked("/w"));
    let changes = webhook(false, |request| Answer::mutate(request.object.unwrap()));
    let failure = changes.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Changed("/w"));
    struct Hangs;
    impl Handler for Hangs {
        fn handle(&self, _: Request) -> BoxFuture<'_, Answer> {
            Box::pin(std::future::pending())
        }
    }
    let hangs = Webhook {
        handler: Arc::new(Hangs),
        ..panics
    };
    let failure = hangs.review(request(json!({})), LIMIT).await.unwrap_err();
    assert_eq!(failure, Failure::Late("/w", LIMIT));
}
