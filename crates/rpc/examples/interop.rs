//! The ends of NRI implemented here, for bench/interop, which provides other implementations of the opposite
//! end.
//!
//! `interop plugin SOCKET` is a plugin of the runtime there, `interop runtime SOCKET` a runtime that waits
//! for a plugin.

#![allow(clippy::print_stdout, reason = "what the driver reads")]

use koord_rpc::mux::Mux;
use koord_rpc::nri::{
    ConfigureRequest, Container, ContainerAdjustment, ContainerUpdate, CreateContainerRequest,
    Empty, Event, Handler, KeyValue, LinuxContainerAdjustment, LinuxContainerUpdate, LinuxCpu,
    LinuxResources, OptionalUInt64, PLUGIN_CHANNEL, PluginClient, PodSandbox, RUNTIME_CHANNEL,
    RegisterPluginRequest, Reply, Runtime, RuntimeServer, Settings, Socket, Stub,
    SynchronizeRequest, UpdateContainersRequest, UpdateContainersResponse,
};
use koord_rpc::{grpc, ttrpc};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error>;

/// Returns the adjusted resources.
fn shares() -> Option<LinuxResources> {
    Some(LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: 512 }),
            ..LinuxCpu::default()
        }),
        ..LinuxResources::default()
    })
}

fn update(id: &str) -> ContainerUpdate {
    ContainerUpdate {
        container_id: id.to_owned(),
        linux: Some(LinuxContainerUpdate {
            resources: shares(),
        }),
        ignore_failure: true,
    }
}

/// Sets 512 CPU shares and a variable in every new container, and updates the last existing container.
struct Plugin;

impl Handler for Plugin {
    fn synchronize(&self, _: &[PodSandbox], containers: &[Container]) -> Vec<ContainerUpdate> {
        let last = containers.last();
        last.map(|last| update(&last.id)).into_iter().collect()
    }

    fn create(&self, _: &PodSandbox, _: &Container) -> Result<Reply, String> {
        let adjust = ContainerAdjustment {
            env: vec![KeyValue {
                key: "FROM".to_owned(),
                value: "plugin".to_owned(),
            }],
            linux: Some(LinuxContainerAdjustment {
                resources: shares(),
                ..LinuxContainerAdjustment::default()
            }),
            ..ContainerAdjustment::default()
        };
        Ok(Reply {
            adjust: Some(adjust),
            ..Reply::default()
        })
    }

    fn update(
        &self,
        _: &PodSandbox,
        container: &Container,
        _: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, String> {
        Ok(vec![update(&container.id)])
    }

    fn event(&self, _: Event, _: &PodSandbox, _: Option<&Container>) -> Result<(), String> {
        Ok(())
    }
}

async fn plugin(socket: &Path) -> Result<(), Failure> {
    let events = vec![
        Event::RunPodSandbox,
        Event::CreateContainer,
        Event::UpdateContainer,
        Event::RemoveContainer,
    ];
    let mut settings = Settings::new("koord", "00", events);
    settings.socket = Socket::Path(socket.to_owned());
    Stub::new(settings, Arc::new(Plugin))?
        .run(CancellationToken::new())
        .await;
    Ok(())
}

/// The runtime's service for the plugin.
struct Registry(mpsc::UnboundedSender<String>);

impl Runtime for Registry {
    async fn register_plugin(
        &self,
        request: RegisterPluginRequest,
        _: ttrpc::Context,
    ) -> Result<Empty, ttrpc::Status> {
        let _ = self.0.send(request.plugin_name);
        Ok(Empty {})
    }

    async fn update_containers(
        &self,
        _: UpdateContainersRequest,
        _: ttrpc::Context,
    ) -> Result<UpdateContainersResponse, ttrpc::Status> {
        Ok(UpdateContainersResponse::default())
    }
}

async fn runtime(socket: &Path) -> Result<(), Failure> {
    let listener = grpc::listen(socket)?;
    println!("serving");
    let (stream, _) = listener.accept().await?;
    let (mux, [plugins, own]) = Mux::open(stream, [PLUGIN_CHANNEL, RUNTIME_CHANNEL]);
    let (registered, mut name) = mpsc::unbounded_channel();
    let server = ttrpc::Server::default().with(RuntimeServer(Arc::new(Registry(registered))));
    let serving = tokio::spawn(async move { server.serve(own).await });
    let name = name.recv().await.ok_or("no plugin registered")?;
    let plugin = PluginClient(ttrpc::Client::new(plugins));
    let options = ttrpc::Options::within(Duration::from_secs(10));
    let request = ConfigureRequest {
        runtime_name: "koord".to_owned(),
        runtime_version: "1".to_owned(),
        registration_timeout: 5000,
        request_timeout: 2000,
        ..ConfigureRequest::default()
    };
    let configured = plugin.configure(&request, &options).await?;
    // Sent in several parts; the last one is marked.
    let pod = PodSandbox {
        id: "pod".to_owned(),
        name: "pod".to_owned(),
        ..PodSandbox::default()
    };
    for part in 0..5 {
        let containers = (0..300).map(|i| Container {
            id: format!("{part}-{i}"),
            pod_sandbox_id: "pod".to_owned(),
            env: vec!["x".repeat(4000)],
            ..Container::default()
        });
        let request = SynchronizeRequest {
            pods: vec![pod.clone()],
            containers: containers.collect(),
            more: part < 4,
        };
        let answer = plugin.synchronize(&request, &options).await?;
        if answer.more != request.more {
            return Err(format!("part {part}: {answer:?}").into());
        }
    }
    let request = CreateContainerRequest {
        pod: Some(pod),
        container: Some(Container {
            id: "new".to_owned(),
            name: "new".to_owned(),
            ..Container::default()
        }),
    };
    let created = plugin.create_container(&request, &options).await?;
    let env = created.adjust.unwrap_or_default().env;
    let value = env.first().map_or("", |env| env.value.as_str());
    println!("{name} events {:b} saw {value}", configured.events);
    if value != "1500/pod/new" {
        return Err(format!("the plugin saw {value:?}").into());
    }
    serving.abort();
    mux.close().await;
    println!("runtime ok");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut argv = std::env::args().skip(1);
    match (argv.next().as_deref(), argv.next()) {
        (Some("plugin"), Some(socket)) => plugin(Path::new(&socket)).await,
        (Some("runtime"), Some(socket)) => runtime(Path::new(&socket)).await,
        _ => Err("usage: interop plugin SOCKET | interop runtime SOCKET".into()),
    }
}
