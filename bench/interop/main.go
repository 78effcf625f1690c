// Programs with third-party libraries for bench/interop: a client of the CRI, a runtime with NRI, a plugin.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	image   = "koord.local/busybox:1"
	message = 16 << 20
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "cri":
		err = client(ctx, os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "runtime":
		err = runtime(ctx, os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "plugin":
		err = plugin(ctx, os.Args[2])
	default:
		err = errors.New("usage: interop cri SOCKET CGROUP | runtime SOCKET | plugin SOCKET")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

// client calls a runtime as a kubelet does, dialing in both ways that gRPC's clients use: by a
// URL, and by a bare path, which then stands in :authority.
func client(ctx context.Context, socket, group string) error {
	bare := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
	for _, way := range []struct {
		name, target string
		more         []grpc.DialOption
	}{
		{"url", "unix://" + socket, nil},
		{"path", "passthrough:///" + socket, []grpc.DialOption{bare}},
	} {
		options := append(way.more, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(message), grpc.MaxCallSendMsgSize(message)))
		connection, err := grpc.NewClient(way.target, options...)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		err = pod(ctx, cri.NewRuntimeServiceClient(connection), "interop-"+way.name, group)
		connection.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		fmt.Println("cri", way.name, "ok")
	}
	return nil
}

func pod(ctx context.Context, runtime cri.RuntimeServiceClient, name, group string) error {
	version, err := runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil || version.RuntimeApiVersion != "v1" {
		return fmt.Errorf("Version: %v %w", version, err)
	}
	streaming, stop := context.WithCancel(ctx)
	defer stop()
	events, err := runtime.GetContainerEvents(streaming, &cri.GetEventsRequest{})
	if err != nil {
		return fmt.Errorf("GetContainerEvents: %w", err)
	}
	seen := make(chan *cri.ContainerEventResponse, 100)
	ended := make(chan error, 1)
	go func() {
		for {
			event, err := events.Recv()
			if err != nil {
				ended <- err
				return
			}
			seen <- event
		}
	}()
	// The stream is open when the runtime has received the request, which a client cannot observe.
	time.Sleep(500 * time.Millisecond)

	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		Labels:   map[string]string{"app": name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: group,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
			},
		},
	}
	ran, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return fmt.Errorf("RunPodSandbox: %w", err)
	}
	container := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"},
		Image:    &cri.ImageSpec{Image: image},
		Command:  []string{"sleep", "1000"},
		// Large enough for many frames, and small enough for containerd to store.
		Annotations: map[string]string{"large": strings.Repeat("x", 200<<10)},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuShares: 100, CpuPeriod: 100000, CpuQuota: 20000},
		},
	}
	created, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: ran.PodSandboxId, Config: container, SandboxConfig: config,
	})
	if err != nil {
		return fmt.Errorf("CreateContainer: %w", err)
	}
	id := created.ContainerId
	if _, err := runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("StartContainer: %w", err)
	}
	if _, err := runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &cri.LinuxContainerResources{CpuShares: 300},
	}); err != nil {
		return fmt.Errorf("UpdateContainerResources: %w", err)
	}
	// More than gRPC's own limit of 4 MiB.
	said, err := runtime.ExecSync(ctx, &cri.ExecSyncRequest{
		ContainerId: id, Cmd: []string{"sh", "-c", "dd if=/dev/zero bs=1M count=6 2> /dev/null"}, Timeout: 20,
	})
	if err != nil || len(said.Stdout) != 6<<20 {
		return fmt.Errorf("ExecSync: %d bytes of %d: %w", len(said.GetStdout()), 6<<20, err)
	}
	state, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil || state.Status.Resources.Linux.CpuShares != 300 {
		return fmt.Errorf("ContainerStatus: %v %w", state.GetStatus().GetResources(), err)
	}
	// An error of the runtime arrives unchanged.
	_, err = runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: "none"})
	if status.Code(err) != codes.NotFound {
		return fmt.Errorf("ContainerStatus of none: %w", err)
	}
	// A deadline that passes ends the call on both sides.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	_, err = runtime.ExecSync(short, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "5"}})
	cancel()
	if status.Code(err) != codes.DeadlineExceeded {
		return fmt.Errorf("ExecSync past its deadline: %w", err)
	}
	if _, err := runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("StopContainer: %w", err)
	}
	if _, err := runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("RemoveContainer: %w", err)
	}
	if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: ran.PodSandboxId}); err != nil {
		return fmt.Errorf("StopPodSandbox: %w", err)
	}
	if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: ran.PodSandboxId}); err != nil {
		return fmt.Errorf("RemovePodSandbox: %w", err)
	}
	// While the stream is open, the events of the container arrive in order.
	wanted := []cri.ContainerEventType{
		cri.ContainerEventType_CONTAINER_CREATED_EVENT, cri.ContainerEventType_CONTAINER_STARTED_EVENT,
		cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT,
	}
	for len(wanted) > 0 {
		select {
		case event := <-seen:
			if event.ContainerId == id && event.ContainerEventType == wanted[0] {
				wanted = wanted[1:]
			}
		case err := <-ended:
			return fmt.Errorf("the stream of events ended: %w", err)
		case <-time.After(20 * time.Second):
			return fmt.Errorf("no event %v of the container", wanted[0])
		}
	}
	stop()
	if err := <-ended; status.Code(err) != codes.Canceled {
		return fmt.Errorf("the stream of events ended: %w", err)
	}
	return nil
}

// runtime embeds NRI as containerd does: it waits for a plugin, sends it many containers,
// and creates and updates one.
func runtime(ctx context.Context, socket string) error {
	sandbox := &api.PodSandbox{Id: "pod", Name: "pod", Uid: "uid", Namespace: "default"}
	// Several MiB, so that they arrive in parts. With few pods, a part would have none of them, and
	// v0.12.5 sends empty parts for ever, also to plugins in Go.
	pods := []*api.PodSandbox{sandbox}
	var there []*api.Container
	for at := range 4000 {
		pod := fmt.Sprintf("pod%d", at/10)
		if at%10 == 0 {
			pods = append(pods, &api.PodSandbox{Id: pod, Name: pod, Uid: pod, Namespace: "default"})
		}
		there = append(there, &api.Container{
			Id: fmt.Sprintf("c%d", at), PodSandboxId: pod, Name: "c", State: api.ContainerState_CONTAINER_RUNNING,
			Env: []string{"LONG=" + strings.Repeat("x", 2000)},
		})
	}
	synchronized := make(chan []*api.ContainerUpdate, 1)
	synchronize := func(ctx context.Context, tell adaptation.SyncCB) error {
		updates, err := tell(ctx, pods, there)
		// This is also called at the start, without any plugin.
		if len(updates) > 0 {
			synchronized <- updates
		}
		return err
	}
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return nil, nil
	}
	adapt, err := adaptation.New("interop", "1", synchronize, update, adaptation.WithSocketPath(socket))
	if err != nil {
		return err
	}
	if err := adapt.Start(); err != nil {
		return err
	}
	defer adapt.Stop()
	fmt.Println("serving")
	select {
	case updates := <-synchronized:
		if len(updates) != 1 || updates[0].ContainerId != "c3999" {
			return fmt.Errorf("Synchronize: %v", updates)
		}
	case <-ctx.Done():
		return errors.New("no plugin came that updates a container")
	}
	// The plugin is active when the synchronization has finished.
	container := &api.Container{Id: "new", PodSandboxId: "pod", Name: "new"}
	var created *api.CreateContainerResponse
	for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(50 * time.Millisecond) {
		created, err = adapt.CreateContainer(ctx, &api.CreateContainerRequest{Pod: sandbox, Container: container})
		if err != nil {
			return fmt.Errorf("CreateContainer: %w", err)
		}
		if created.Adjust.GetLinux() != nil {
			break
		}
	}
	if got := created.Adjust.GetLinux().GetResources().GetCpu().GetShares().GetValue(); got != 512 {
		return fmt.Errorf("CreateContainer: %v", created)
	}
	if env := created.Adjust.GetEnv(); len(env) != 1 || env[0].Key != "FROM" || env[0].Value != "plugin" {
		return fmt.Errorf("CreateContainer: environment %v", env)
	}
	updated, err := adapt.UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: sandbox, Container: container,
		LinuxResources: &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(100)}},
	})
	if err != nil {
		return fmt.Errorf("UpdateContainer: %w", err)
	}
	if got := updated.Update[len(updated.Update)-1].GetLinux().GetResources().GetCpu().GetShares().GetValue(); got != 512 {
		return fmt.Errorf("UpdateContainer: %v", updated)
	}
	if err := adapt.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: sandbox}); err != nil {
		return fmt.Errorf("RunPodSandbox: %w", err)
	}
	if err := adapt.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: sandbox, Container: container}); err != nil {
		return fmt.Errorf("RemoveContainer: %w", err)
	}
	fmt.Println("runtime ok")
	return nil
}

// asked is a plugin based on the stub that Go plugins use.
type asked struct{ containers int }

func (a *asked) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	a.containers = len(containers)
	return nil, nil
}

func (a *asked) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("SEEN", fmt.Sprintf("%d/%s/%s", a.containers, pod.Name, container.Name))
	return adjust, nil, nil
}

// plugin serves until the runtime ends.
func plugin(ctx context.Context, socket string) error {
	made, err := stub.New(&asked{}, stub.WithPluginName("interop"), stub.WithPluginIdx("10"), stub.WithSocketPath(socket))
	if err != nil {
		return err
	}
	if err := made.Run(ctx); err != nil && !strings.Contains(err.Error(), "closed") {
		return err
	}
	fmt.Println("plugin ok")
	return nil
}
