// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import "strings"

// A rule is required by a backend, by OTLP or by hotprofile itself. Wire stands for every
// receiver of OTLP from collector 0.159 to 0.164. OldWire stands for the receivers of
// collectors up to 0.160 (HTTP) and 0.162 (gRPC). Ours stands for a promise of hotprofile
// that no backend requires.
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

// Rule is a rule that profiles must keep.
type Rule struct {
	// Name is short and stable, such as zero-entry.
	Name string
	// Backends are those that reject, drop or misread profiles that break the rule.
	Backends string
}

func rule(name string, backends ...string) Rule {
	return Rule{Name: name, Backends: strings.Join(backends, ", ")}
}

// The rules of the message.
var (
	// WireFormat: the bytes are an ExportProfilesServiceRequest without unknown
	// fields, which backends drop silently.
	WireFormat = rule("wire-format", Wire)
	// InlineAttributes: keys and values of resources and scopes are inline, not
	// references into the dictionary (opentelemetry-proto pull request 733), which
	// Pyroscope 2.2 and Parca of July 2026 do not read. Strings in the dictionary's
	// own attributes are inline in both forms.
	InlineAttributes = rule("inline-attributes", Pyroscope, Parca, OldWire)
	// ReferencedAttributes: keys and strings of resources and scopes are references,
	// all of them, as the newest exporters write them.
	ReferencedAttributes = rule("referenced-attributes", Ours)
	// OneForm: no key and no string is there in both forms. The newest receivers
	// refuse a key that is, and use one of two strings.
	OneForm = rule("one-form", Wire)
	// EmptyRequest: a request has a resource and a dictionary. Pyroscope's
	// ingest_handler.go and Parca's otel.go reject a request without.
	EmptyRequest = rule("empty-request", Pyroscope, Parca)
	// MaxRequestBytes: a gRPC server accepts 4 MiB by default, and an exporter that
	// batches to 3 MB cannot split a profile that is larger.
	MaxRequestBytes = rule("max-request-bytes", Wire, Ours)
)

// The rules of the dictionary.
var (
	// ZeroEntry: profiles.proto of the OTLP release; Pyroscope and Parca
	// (ValidateOtelDictionary) reject the request.
	ZeroEntry = rule("zero-entry", Wire, Pyroscope, Parca)
	Orphan    = rule("orphan", Ours)
	Duplicate = rule("duplicate", Ours)
	// IndexRange: Pyroscope's convert.go and Parca reject the request, the ClickHouse
	// exporter writes an empty field.
	IndexRange = rule("index-range", Wire, Pyroscope, Parca, Elastic, Splunk, ClickHouse)
	// UTF8: protobuf decoders reject the request.
	UTF8 = rule("utf8", Wire, Pyroscope, Parca, Elastic, Splunk, ClickHouse)
	// LinkIDs: 16 and 8 bytes, neither zero. Parca rejects the request.
	LinkIDs = rule("link-ids", Parca)
	// FrameType: the Elasticsearch exporter's transform.go fails on a location without
	// it; Pyroscope uses it to recognize kernel frames.
	FrameType = rule("frame-type", Elastic, Pyroscope)
	// LocationPlace: Elastic identifies a frame by its address or its line.
	LocationPlace = rule("location-place", Elastic)
	// MappingRange: start below limit, or both zero, as in the checker of
	// OpenTelemetry's profiling group.
	MappingRange = rule("mapping-range", Wire)
	// LineNumber: not negative, as in that checker.
	LineNumber = rule("line-number", Wire)
	// BuildID: backends find symbols by it.
	BuildID = rule("build-id", Elastic, Parca, Pyroscope)
)

// The rules of profiles.
var (
	// ProfileID: 16 bytes, not all zero (Parca's ValidateOtelProfile, which also
	// accepts a missing one).
	ProfileID = rule("profile-id", Parca)
	// CaptureWindow: Pyroscope uses "now" for a missing time and ten seconds for a
	// missing duration.
	CaptureWindow = rule("capture-window", Parca, Pyroscope)
	// Recent: Pyroscope's validation.reject-older-than is an hour and
	// reject-newer-than ten minutes.
	Recent = rule("recent", Pyroscope)
	// Period: Pyroscope names the series by the period type, Parca rejects a missing
	// one, and its queries panic on an empty one.
	Period = rule("period", Pyroscope, Parca)
	// TypeName: Pyroscope's validate.go rejects a "-" in it.
	TypeName = rule("type-name", Pyroscope)
	// KnownType: one of shapes; NotShown returns who does not show it.
	KnownType = rule("known-type", Elastic, Splunk)
	// NoSamples: Parca rejects the request.
	NoSamples = rule("no-samples", Parca)
	// MaxSamples: Pyroscope's validation.max-profile-stacktrace-samples is 16,000.
	MaxSamples = rule("max-samples", Pyroscope, Ours)
	// MaxProfileBytes: Pyroscope's validation.max-profile-size-bytes is 4 MiB.
	MaxProfileBytes = rule("max-profile-bytes", Pyroscope, Ours)
)

// The rules of samples.
var (
	// NoStack: Pyroscope drops the sample.
	NoStack = rule("no-stack", Pyroscope)
	// StackDepth: Pyroscope's validation.max-profile-stacktrace-depth is 1,000; it cuts
	// deeper stacks at the leaf.
	StackDepth = rule("stack-depth", Pyroscope)
	// OneValue: Pyroscope rejects the request.
	OneValue = rule("one-value", Pyroscope)
	// SampleShape: values and timestamps in equal number (Parca), an event per
	// timestamp (Elastic), the same of both in all samples of a profile (Splunk).
	SampleShape = rule("sample-shape", Parca, Elastic, Splunk)
	SampleTwice = rule("sample-twice", Ours)
	// TimestampWindow: Parca rejects the request.
	TimestampWindow = rule("timestamp-window", Parca)
)

// The rules of attributes, which backends make labels of.
var (
	// ServiceName: Pyroscope rejects a series without it, and calls a resource without
	// it unknown_service:<process.executable.name>; ClickHouse sorts by it.
	ServiceName = rule("service-name", Pyroscope, ClickHouse)
	// LabelCount: Pyroscope's validation.max-label-names-per-series is 30, and it adds
	// four itself.
	LabelCount = rule("label-count", Pyroscope)
	// LabelPromise: the most that the shipped configurations export.
	LabelPromise = rule("label-promise", Ours)
	// LabelLength: Pyroscope's validation.max-length-label-name is 1,024 and
	// max-length-label-value 2,048.
	LabelLength = rule("label-length", Pyroscope)
	// LabelCollision: Parca replaces every character except letters and digits by an
	// underscore, and keeps one of two keys that are then equal.
	LabelCollision = rule("label-collision", Parca)
	// SeriesPerSample: each value becomes a series.
	SeriesPerSample = rule("series-per-sample", Pyroscope)
	// AttributeType: Splunk accepts strings, integers and booleans, Parca rejects a
	// missing value.
	AttributeType = rule("attribute-type", Splunk, Parca)
	// TextAttribute: Pyroscope makes labels of text and, since April 2026, of integers. Parca
	// drops all but text of samples and profiles. So attributes of ours are text, numbers too.
	TextAttribute = rule("text-attribute", Pyroscope, Parca)
	// DistinctTimes: of several profiles of one series that begin at the same nanosecond,
	// Pyroscope's compaction keeps one.
	DistinctTimes = rule("distinct-times", Pyroscope)
	// AttributeKey: Parca rejects a request with an empty or a repeated key.
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
	period string // type/unit
	// valued: one value and one timestamp per sample; else timestamps alone.
	valued bool
	// refused are the backends that do not show the type; the others store it with its
	// name and unit.
	refused []string
}

// shapes returns the types that backends are known to support, by type/unit.
func shapes() map[string][]shape {
	// The Elasticsearch exporter's checkProfileType accepts one type.
	notCPU := []string{Elastic}
	// Splunk shows CPU and allocations.
	waits := []string{Elastic, Splunk}
	return map[string][]shape{
		"samples/count": {
			{period: "cpu/nanoseconds"},
			{period: "wall/nanoseconds", refused: waits},
		},
		"wall/nanoseconds":    {{period: "wall/nanoseconds", valued: true, refused: waits}},
		"alloc_objects/count": {{period: "space/bytes", valued: true, refused: notCPU}},
		"alloc_space/bytes":   {{period: "space/bytes", valued: true, refused: notCPU}},
		// Of pprof endpoints. Splunk shows none of them.
		"inuse_objects/count":     {{period: "space/bytes", valued: true, refused: waits}},
		"inuse_space/bytes":       {{period: "space/bytes", valued: true, refused: waits}},
		"goroutines/count":        {{period: "goroutine/count", valued: true, refused: waits}},
		"threads/count":           {{period: "threadcreate/count", valued: true, refused: waits}},
		"block_contentions/count": {{period: "contentions/count", valued: true, refused: waits}},
		"block_delay/nanoseconds": {{period: "contentions/count", valued: true, refused: waits}},
		"mutex_contentions/count": {{period: "contentions/count", valued: true, refused: waits}},
		"mutex_delay/nanoseconds": {{period: "contentions/count", valued: true, refused: waits}},
		// The period is how many context switches have one sampled stack.
		"off_cpu/nanoseconds":        {{period: "context_switches/count", valued: true, refused: waits}},
		"net_sent/bytes":             {{period: "net_sent/bytes", valued: true, refused: waits}},
		"net_received/bytes":         {{period: "net_received/bytes", valued: true, refused: waits}},
		"tcp_connects/count":         {{period: "tcp_connects/count", valued: true, refused: waits}},
		"tcp_connect_failures/count": {{period: "tcp_connect_failures/count", valued: true, refused: waits}},
		"runqueue/nanoseconds":       {{period: "context_switches/count", valued: true, refused: waits}},
	}
}

// NotShown returns the backends that do not show profiles of a sample type and period
// type, each as type/unit, and whether the type is known.
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
