module koord.local/interop

go 1.24.0

require (
	github.com/containerd/nri v0.12.5
	google.golang.org/grpc v1.79.1
	k8s.io/cri-api v0.37.2
)
