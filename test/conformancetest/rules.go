// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import "strings"

// Each rule is required by a backend, by OTLP or by hotprofile itself. Wire means all OTLP
// receivers of the collectors 0.159 to 0.164. OldWire means the receivers of collectors up
// to 0.160 (HTTP) and 0.162 (gRPC). Ours means that hotprofile promises to follow the rule,
// although no backend requires the rule.
const (
	Pyroscope  = "Pyroscope"
	Parca      = "Parca"
	Elastic    = "Elastic"
	Splunk     = "Splunk"
	ClickHouse = "ClickHouse"
	Wire       = "OTLP"
	OldWire    = "OTLP before references"
	Ours       = "hotprofile"
)

// Rule is a rule that profiles must follow.
type Rule struct {
	// Name is short and stable, such as zero-entry.
	Name string
	// Backends lists the backends that reject, drop or
	// misread profiles that break the rule.
	Backends string
}

func rule(name string, backends ...string) Rule {
	return Rule{Name: name, Backends: strings.Join(backends, ", ")}
}

// These rules are about the request message.
var (
	// WireFormat requires an ExportProfilesServiceRequest without unknown fields.
	// Backends silently drop unknown fields.
	WireFormat = rule("wire-format", Wire)
	// InlineAttributes requires inline keys and values in the attributes of resources and
	// scopes. Pyroscope 2.2 and Parca of July 2026 cannot read references into the
	// dictionary (opentelemetry-proto pull request 733). Strings in the dictionary's own
	// attributes are always inline.
	InlineAttributes = rule("inline-attributes", Pyroscope, Parca, OldWire)
	// ReferencedAttributes requires references for all keys and strings of resources and
	// scopes. The newest exporters write this form.
	ReferencedAttributes = rule("referenced-attributes", Ours)
	// OneForm forbids a key or string that is present both inline and as a reference. The
	// newest receivers reject such a key. If a string is present in both forms, the
	// receivers use only one of them.
	OneForm = rule("one-form", Wire)
	// EmptyRequest requires a resource and a dictionary. Pyroscope's ingest_handler.go
	// and Parca's otel.go reject a request without them.
	EmptyRequest = rule("empty-request", Pyroscope, Parca)
	// MaxRequestBytes limits the size of a request. A gRPC server accepts 4 MiB by default.
	// An exporter that batches up to 3 MB cannot split a single profile of more than 3 MB.
	MaxRequestBytes = rule("max-request-bytes", Wire, Ours)
)

// These rules are about the dictionary.
var (
	// ZeroEntry requires that every table begins with a zero entry, as profiles.proto
	// specifies. Pyroscope and Parca (ValidateOtelDictionary) reject requests
	// without zero entries.
	ZeroEntry = rule("zero-entry", Wire, Pyroscope, Parca)
	Orphan    = rule("orphan", Ours)
	Duplicate = rule("duplicate", Ours)
	// IndexRange requires valid indices. Pyroscope's convert.go and Parca reject requests
	// with an invalid index. The ClickHouse exporter writes an empty field instead.
	IndexRange = rule("index-range", Wire, Pyroscope, Parca, Elastic, Splunk, ClickHouse)
	// UTF8 requires valid UTF-8, because protobuf decoders reject invalid strings.
	UTF8 = rule("utf8", Wire, Pyroscope, Parca, Elastic, Splunk, ClickHouse)
	// LinkIDs requires a trace id of 16 bytes and a span id of 8 bytes. Both ids must not be
	// all zero. Parca rejects requests with other ids.
	LinkIDs = rule("link-ids", Parca)
	// FrameType requires a frame type for each location. The Elasticsearch exporter's
	// transform.go fails on a location without a frame type. Pyroscope uses the frame
	// type to recognize kernel frames.
	FrameType = rule("frame-type", Elastic, Pyroscope)
	// LocationPlace requires an address or a line, because
	// Elastic uses them to identify frames.
	LocationPlace = rule("location-place", Elastic)
	// MappingRange requires that a mapping's start is below its limit, or that both are
	// zero. The checker of OpenTelemetry's profiling group has the same rule.
	MappingRange = rule("mapping-range", Wire)
	// LineNumber forbids negative lines and columns.
	// OpenTelemetry's checker has the same rule.
	LineNumber = rule("line-number", Wire)
	// BuildID requires build ids, because backends use them to find symbols.
	BuildID = rule("build-id", Elastic, Parca, Pyroscope)
)

// These rules are about profiles.
var (
	// ProfileID requires an id of 16 bytes that is not all zero. Parca's
	// ValidateOtelProfile also accepts a missing id.
	ProfileID = rule("profile-id", Parca)
	// CaptureWindow requires a time and a duration. Pyroscope replaces a missing time
	// with the current time and a missing duration with ten seconds.
	CaptureWindow = rule("capture-window", Parca, Pyroscope)
	// Recent requires recent profiles. By default, Pyroscope rejects profiles older than
	// one hour (validation.reject-older-than) and profiles more than ten minutes in the
	// future (validation.reject-newer-than).
	Recent = rule("recent", Pyroscope)
	// Period requires a period and its type. Pyroscope names the series after
	// the period type. Parca rejects a missing period type, and its queries
	// panic on an empty period type.
	Period = rule("period", Pyroscope, Parca)
	// TypeName forbids "-" in the name of a type, because
	// Pyroscope's validate.go rejects it.
	TypeName = rule("type-name", Pyroscope)
	// KnownType requires a type that the function shapes lists. NotShown returns the
	// backends that do not show a type.
	KnownType = rule("known-type", Elastic, Splunk)
	// NoSamples forbids empty profiles, because Parca rejects a
	// request with an empty profile.
	NoSamples = rule("no-samples", Parca)
	// MaxSamples limits the samples of a profile. Pyroscope accepts 16,000 samples by
	// default (validation.max-profile-stacktrace-samples).
	MaxSamples = rule("max-samples", Pyroscope, Ours)
	// MaxProfileBytes limits the size of a profile. Pyroscope accepts 4 MiB by default
	// (validation.max-profile-size-bytes).
	MaxProfileBytes = rule("max-profile-bytes", Pyroscope, Ours)
)

// These rules are about samples.
var (
	// NoStack forbids samples without a stack, because Pyroscope drops them.
	NoStack = rule("no-stack", Pyroscope)
	// StackDepth limits the depth of stacks. Pyroscope truncates stacks of more than
	// 1,000 frames at the leaf (validation.max-profile-stacktrace-depth).
	StackDepth = rule("stack-depth", Pyroscope)
	// OneValue forbids samples with several values, because Pyroscope
	// rejects a request with such samples.
	OneValue = rule("one-value", Pyroscope)
	// SampleShape restricts the numbers of values and timestamps. Parca requires that a
	// sample has as many values as timestamps. Elastic creates an event for each timestamp.
	// Splunk requires the same number of values and timestamps in all samples of a profile.
	SampleShape = rule("sample-shape", Parca, Elastic, Splunk)
	SampleTwice = rule("sample-twice", Ours)
	// TimestampWindow requires timestamps within the time of the profile, because Parca
	// rejects requests with other timestamps.
	TimestampWindow = rule("timestamp-window", Parca)
)

// These rules are about attributes, which backends convert to labels.
var (
	// ServiceName requires a service.name, because Pyroscope rejects a series without one. If
	// the service is unknown, the name must be unknown_service:<process.executable.name>, as
	// in Pyroscope. ClickHouse sorts by the service name.
	ServiceName = rule("service-name", Pyroscope, ClickHouse)
	// LabelCount limits the number of labels. Pyroscope accepts 30 labels by default
	// (validation.max-label-names-per-series) and adds four labels itself.
	LabelCount = rule("label-count", Pyroscope)
	// LabelPromise limits the number of labels to the maximum that the
	// shipped configurations export.
	LabelPromise = rule("label-promise", Ours)
	// LabelLength limits the length of labels. By default, Pyroscope accepts 1,024 bytes
	// in a name (validation.max-length-label-name) and 2,048 bytes in a value
	// (validation.max-length-label-value).
	LabelLength = rule("label-length", Pyroscope)
	// LabelCollision forbids keys that become equal in Parca. Parca replaces
	// every character except letters and digits with an underscore, and
	// keeps only one of two equal keys.
	LabelCollision = rule("label-collision", Parca)
	// SeriesPerSample forbids attributes of samples that the options do not allow,
	// because each value of an attribute becomes a separate series.
	SeriesPerSample = rule("series-per-sample", Pyroscope)
	// AttributeType restricts the types of values. Splunk accepts strings, integers and
	// booleans. Parca rejects a missing value.
	AttributeType = rule("attribute-type", Splunk, Parca)
	// TextAttribute requires text in hotprofile's own attributes, even for numbers.
	// Pyroscope converts text to labels. Since April 2026, Pyroscope also converts
	// integers. Parca drops all attributes of samples and profiles that are not text.
	TextAttribute = rule("text-attribute", Pyroscope, Parca)
	// DistinctTimes forbids two profiles of one series that begin at the same nanosecond.
	// Pyroscope's compaction keeps only one of these profiles.
	DistinctTimes = rule("distinct-times", Pyroscope)
	// AttributeKey forbids empty and repeated keys, because Parca
	// rejects a request with such keys.
	AttributeKey = rule("attribute-key", Parca)
)

// Rules returns all rules.
func Rules() []Rule {
	return []Rule{
		WireFormat, InlineAttributes, ReferencedAttributes, OneForm, EmptyRequest, MaxRequestBytes,
		ZeroEntry, Orphan, Duplicate, IndexRange, UTF8, LinkIDs, FrameType, LocationPlace, MappingRange, LineNumber, BuildID,
		ProfileID, CaptureWindow, Recent, Period, TypeName, KnownType, NoSamples, MaxSamples, MaxProfileBytes,
		NoStack, StackDepth, OneValue, SampleShape, SampleTwice, TimestampWindow,
		ServiceName, LabelCount, LabelPromise, LabelLength, LabelCollision, SeriesPerSample, AttributeType, TextAttribute, AttributeKey, DistinctTimes,
	}
}

// shape describes the samples of a type.
type shape struct {
	period string // as type/unit
	// valued is true if each sample has one value and one timestamp.
	// Otherwise, samples have only timestamps.
	valued bool
	// refused lists the backends that do not show the type. The other backends store the
	// type with its name and unit.
	refused []string
}

// shapes returns the sample types that backends are known to support.
// The keys have the form type/unit.
func shapes() map[string][]shape {
	// The Elasticsearch exporter's checkProfileType accepts only one type.
	notCPU := []string{Elastic}
	// Splunk shows only CPU profiles and allocations.
	waits := []string{Elastic, Splunk}
	return map[string][]shape{
		"samples/count": {
			{period: "cpu/nanoseconds"},
			{period: "wall/nanoseconds", refused: waits},
		},
		"wall/nanoseconds":    {{period: "wall/nanoseconds", valued: true, refused: waits}},
		"alloc_objects/count": {{period: "space/bytes", valued: true, refused: notCPU}},
		"alloc_space/bytes":   {{period: "space/bytes", valued: true, refused: notCPU}},
		// These types come from pprof endpoints. Splunk does not show any of them.
		"inuse_objects/count":     {{period: "space/bytes", valued: true, refused: waits}},
		"inuse_space/bytes":       {{period: "space/bytes", valued: true, refused: waits}},
		"goroutines/count":        {{period: "goroutine/count", valued: true, refused: waits}},
		"threads/count":           {{period: "threadcreate/count", valued: true, refused: waits}},
		"block_contentions/count": {{period: "contentions/count", valued: true, refused: waits}},
		"block_delay/nanoseconds": {{period: "contentions/count", valued: true, refused: waits}},
		"mutex_contentions/count": {{period: "contentions/count", valued: true, refused: waits}},
		"mutex_delay/nanoseconds": {{period: "contentions/count", valued: true, refused: waits}},
		// The period is the number of context switches per sampled stack.
		"off_cpu/nanoseconds":        {{period: "context_switches/count", valued: true, refused: waits}},
		"net_sent/bytes":             {{period: "net_sent/bytes", valued: true, refused: waits}},
		"net_received/bytes":         {{period: "net_received/bytes", valued: true, refused: waits}},
		"tcp_connects/count":         {{period: "tcp_connects/count", valued: true, refused: waits}},
		"tcp_connect_failures/count": {{period: "tcp_connect_failures/count", valued: true, refused: waits}},
		"runqueue/nanoseconds":       {{period: "context_switches/count", valued: true, refused: waits}},
	}
}

// NotShown returns the backends that do not show profiles of a sample type and a period
// type, both in the form type/unit. known reports whether the sample type is known.
func NotShown(sampleType, periodType string) (backends []string, known bool) {
	for _, s := range shapes()[sampleType] {
		if s.period == periodType {
			return s.refused, true
		}
	}
	return nil, false
}

// frameTypes returns the values of profile.frame.type.
func frameTypes() []string {
	return []string{
		"beam", "cpython", "dotnet", "go", "jvm", "kernel", "native",
		"perl", "php", "ruby", "rust", "v8js",
	}
}
