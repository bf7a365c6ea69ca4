// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package attr defines the key of every OTLP attribute that hotprofile reads or writes.
// The attributes of hotprofile's own metrics are defined in the metadata.yaml of each
// component. Keys without the prefix hotprofile. come from OpenTelemetry's semantic
// conventions 1.43. Constants that begin with Old contain keys of earlier conventions.
package attr

// These are resource attributes.
const (
	ContainerID           = "container.id"
	DeploymentEnvironment = "deployment.environment.name"
	HostID                = "host.id"
	HostName              = "host.name"
	ContainerName         = "k8s.container.name"
	NamespaceName         = "k8s.namespace.name"
	PodName               = "k8s.pod.name"
	PodUID                = "k8s.pod.uid"
	RuntimeContainerName  = "container.name"
	ServiceInstanceID     = "service.instance.id"
	ServiceName           = "service.name"
	ServiceNamespace      = "service.namespace"
	ServiceVersion        = "service.version"
	SDKLanguage           = "telemetry.sdk.language"

	Cgroup           = "process.linux.cgroup"
	Command          = "process.command"
	CommandArgs      = "process.command_args"
	CommandLine      = "process.command_line"
	CreationTime     = "process.creation.time" // RFC 3339
	ExecutableName   = "process.executable.name"
	ExecutablePath   = "process.executable.path"
	GroupLeaderPID   = "process.group_leader.pid"
	Interactive      = "process.interactive"
	ParentPID        = "process.parent_pid"
	PID              = "process.pid"
	SessionLeaderPID = "process.session_leader.pid"
	Title            = "process.title"
	VPID             = "process.vpid"
	WorkingDirectory = "process.working_directory"
)

// Origin is a resource attribute. It distinguishes profiles of the same program and type that
// come from different profilers. The value is OriginPprof if the program made the profiles
// itself. The attribute is absent if hotprofile sampled the profiles.
const (
	Origin      = Prefix + "origin"
	OriginPprof = "pprof"
)

// These are attributes of mappings. They contain the build ids of the GNU linker and
// of Go, and the hash of OpenTelemetry's eBPF profiler.
const (
	BuildIDGNU     = "process.executable.build_id.gnu"
	BuildIDGo      = "process.executable.build_id.go"
	BuildIDHTLHash = "process.executable.build_id.htlhash"
)

// FrameType is an attribute of locations.
const FrameType = "profile.frame.type"

// These are attributes of samples.
const (
	AllocType      = Prefix + "alloc.type"
	DotnetSelected = Prefix + "dotnet.selected"
	StackTruncated = Prefix + "stack.truncated"
	ThreadID       = "thread.id"
	ThreadName     = "thread.name"
	Transport      = "network.transport" // also an attribute of peer metrics
	Wait           = Prefix + "wait"     // network, disk, lock, sleep or other
)

// These are attributes of profiles.
const (
	CPUTime  = Prefix + "cpu.time" // the process's CPU time during the profile, in nanoseconds
	Lost     = Prefix + "lost"
	Scaled   = Prefix + "scaled"
	Spread   = Prefix + "spread"
	Unscaled = Prefix + "unscaled"
)

// cpu_trigger adds these attributes to profiles that pass a gate. The policy is added to
// both the profile and its resource. The kind is added only to the resource.
const (
	Unit             = Prefix + "unit"
	TriggerID        = TriggerPrefix + "id"
	TriggerKind      = TriggerPrefix + "kind"
	TriggerMonitor   = TriggerPrefix + "monitor"
	TriggerPhase     = TriggerPrefix + "phase"
	TriggerPolicy    = TriggerPrefix + "policy"
	TriggerThreshold = TriggerPrefix + "threshold"
	TriggerTime      = TriggerPrefix + "time"  // RFC 3339
	TriggerUntil     = TriggerPrefix + "until" // RFC 3339
	TriggerValue     = TriggerPrefix + "value"
	TriggerWindow    = TriggerPrefix + "window"
)

// These are attributes of events. Events also have the attributes of the trigger.
const (
	// TriggerCondition contains the monitor and its parameters, in the same format as in
	// readings.
	TriggerCondition    = TriggerPrefix + "condition"
	TriggerTraces       = TriggerPrefix + "traces"         // traces of the slowest requests
	GateBudget          = Prefix + "gate.budget"           // the budget that kept the gate shut
	GateBytes           = Prefix + "gate.bytes"            // bytes that the next component accepted
	GateDuration        = Prefix + "gate.duration"         // in seconds
	GateNothingExported = Prefix + "gate.nothing_exported" // the reason why no profile was accepted
	GateSamples         = Prefix + "gate.samples"
	GateWhy             = Prefix + "gate.why"
	PoliciesAdded       = Prefix + "policies.added" // names of policies, like the following two
	PoliciesChanged     = Prefix + "policies.changed"
	PoliciesRemoved     = Prefix + "policies.removed"
	PoliciesFrom        = Prefix + "policies.from"     // a file or URL
	PoliciesVersion     = Prefix + "policies.version"  // version of the document that was read
	Requests            = Prefix + "requests"          // the slowest requests, each as JSON
	ProfileDuration     = Prefix + "profile.duration"  // in seconds
	ProfileFunctions    = Prefix + "profile.functions" // the hottest functions and their shares
	ProfileSamples      = Prefix + "profile.samples"
	ProfileType         = Prefix + "profile.type"
	FilePath            = "file.path"
	FileSize            = "file.size"
)

// These are attributes of the metrics about units and their peers.
const (
	IODirection   = "network.io.direction"
	LocalPort     = "network.local.port"
	PeerAddress   = "network.peer.address"
	PeerDirection = Prefix + "peer.direction"
	PeerLimit     = Prefix + "peer.limit"
	PeerPort      = "network.peer.port"
	PeerService   = "service.peer.name"
	PeerUnit      = Prefix + "peer.unit"
	PolicyState   = Prefix + "policy.state"
)

// These are attributes of requests. They are set on spans and on the metrics of servers.
const (
	ErrorType         = "error.type"
	HTTPMethod        = "http.request.method"
	HTTPRoute         = "http.route"
	HTTPStatus        = "http.response.status_code"
	Request           = Prefix + "request" // slow, failed or normal; on samples
	RPCMethod         = "rpc.method"
	RPCStatus         = "rpc.response.status_code"
	RPCSystem         = "rpc.system.name"
	SamplingThreshold = "sampling.threshold" // set by the processor probabilistic_sampler
	URLPath           = "url.path"

	OldConnectStatus = "rpc.connect_rpc.error_code"
	OldGRPCStatus    = "rpc.grpc.status_code"
	OldHTTPMethod    = "http.method"
	OldHTTPStatus    = "http.status_code"
	OldHTTPTarget    = "http.target"
	OldHTTPURL       = "http.url"
	OldRPCService    = "rpc.service"
	OldRPCSystem     = "rpc.system"
)

// These are attributes of log records and of the scopes of a collector's own logs.
// OldEventName contains the name of the event in log records that have no event name
// field.
const (
	ComponentID   = "otelcol.component.id"
	ComponentKind = "otelcol.component.kind"
	OldEventName  = "event.name"
)

// hotprofile's own keys begin with Prefix. Keys about triggers begin with TriggerPrefix.
const (
	Prefix        = "hotprofile."
	TriggerPrefix = Prefix + "trigger."
)
