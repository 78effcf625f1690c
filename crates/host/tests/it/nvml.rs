//! NVIDIA's library, actually loaded from a shared object that the test compiles.

use koord_host::nvml::{Gpu, LIBRARY, Nvml, NvmlError, Xid};
use koord_host::testing::{FakeGpu, FakeNvml};
use std::path::Path;
use std::time::Duration;

const A: FakeGpu = FakeGpu {
    uuid: "GPU-a",
    name: "NVIDIA A100-SXM4-80GB",
    minor: 1,
    memory: 80 << 30,
    bus: 0x3b,
    watched: true,
};
const B: FakeGpu = FakeGpu {
    uuid: "GPU-b",
    minor: 0,
    bus: 0x86,
    watched: false,
    ..A
};

fn fake(dir: &Path) -> Option<FakeNvml> {
    FakeNvml::build(dir, &[A, B]).unwrap()
}

#[test]
fn gpus_are_those_of_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let Some(fake) = fake(dir.path()) else {
        return;
    };
    let nvml = Nvml::load(&fake.library()).unwrap();
    assert_eq!(nvml.driver().unwrap(), "535.104.05");
    let (gpus, lost) = nvml.gpus().unwrap();
    assert_eq!(lost, []);
    let gpu = |fake: FakeGpu, address: &str| Gpu {
        uuid: fake.uuid.to_owned(),
        name: fake.name.to_owned(),
        minor: fake.minor.try_into().unwrap(),
        memory: fake.memory,
        address: address.to_owned(),
    };
    assert_eq!(gpus, [gpu(A, "0000:3b:00.0"), gpu(B, "0000:86:00.0")]);

    // A GPU that has fallen off the bus does not hide the others.
    fake.put("lost", "0").unwrap();
    let (gpus, lost) = nvml.gpus().unwrap();
    assert_eq!(gpus.len(), 1);
    assert_eq!(
        lost[0].to_string(),
        "nvmlDeviceGetUUID: GPU is lost (code 15)"
    );

    // Started once, and shut down with the last handle.
    let other = nvml.clone();
    drop(nvml);
    assert_eq!(fake.read("log"), "init\n");
    drop(other);
    assert_eq!(fake.read("log"), "init\nshutdown\n");
}

#[test]
fn only_critical_xids_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Some(fake) = fake(dir.path()) else {
        return;
    };
    let nvml = Nvml::load(&fake.library()).unwrap();
    let addresses = ["0000:3b:00.0", "0000:86:00.0", "0000:99:00.0"].map(str::to_owned);
    let watch = nvml.watch(&addresses).unwrap();
    assert_eq!(watch.mute, ["0000:86:00.0"]);
    assert_eq!(watch.lost.len(), 1);
    assert_eq!(watch.lost[0].0, "0000:99:00.0");
    let soon = Duration::from_millis(1);
    assert_eq!(watch.next(soon).unwrap(), None);
    let wait_for = |event: &str| {
        fake.put("event", event).unwrap();
        watch.next(Duration::from_secs(60)).unwrap()
    };
    for code in [13, 31, 43, 45, 68, 109] {
        assert_eq!(wait_for(&format!("{code} 0")), None, "an application's");
    }
    let address = Some("0000:3b:00.0".to_owned());
    assert_eq!(wait_for("79 0"), Some(Xid { code: 79, address }));
    assert_eq!(
        wait_for("48 -1"),
        Some(Xid {
            code: 48,
            address: None
        })
    );
    assert_eq!(watch.absence("0000:3b:00.0"), None);
    fake.put("lost", "0").unwrap();
    let absence = watch.absence("0000:3b:00.0").unwrap().to_string();
    assert_eq!(
        absence,
        "nvmlDeviceGetHandleByPciBusId_v2: GPU is lost (code 15)"
    );
    // The subscription outlives the handle that created it.
    drop(nvml);
    assert_eq!(
        wait_for("74 -1"),
        Some(Xid {
            code: 74,
            address: None
        })
    );
    drop(watch);
    assert_eq!(fake.read("log"), "init\nshutdown\n");
}

#[test]
fn no_library_has_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LIBRARY);
    let error = Nvml::load(&path).unwrap_err();
    assert!(matches!(error, NvmlError::Absent { .. }));
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    let error = Nvml::load(Path::new("a\0b")).unwrap_err();
    assert!(matches!(error, NvmlError::Absent { .. }));
    // A library, but not this one.
    let error = Nvml::load(Path::new("libc.so.6")).unwrap_err().to_string();
    assert_eq!(error, "nvmlErrorString: the library has no such function");

    let Some(fake) = fake(dir.path()) else {
        return;
    };
    fake.put("init", "9").unwrap();
    let error = Nvml::load(&fake.library()).unwrap_err().to_string();
    assert_eq!(error, "nvmlInit_v2: Driver Not Loaded (code 9)");
    assert_eq!(fake.read("log"), "", "what has not begun is not ended");
}
