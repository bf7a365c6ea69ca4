// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance checks OTLP profiles against what every backend that the
// project knows of accepts, and against what the project promises beyond that.
// It shares no code with what builds profiles, so that one's mistakes are not
// the other's.
package conformance

import (
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Rule is one thing that profiles must do.
type Rule struct {
	// Name is short and stable, as zero-entry.
	Name string
	// Backends are those that refuse, drop or misread what breaks the rule, or
	// hotprofile where the rule is the project's own promise.
	Backends string
}

// The rules.
var (
	ZeroEntry       = Rule{"zero-entry", "Pyroscope, Parca"}
	Orphan          = Rule{"orphan", "hotprofile"}
	Duplicate       = Rule{"duplicate", "hotprofile"}
	IndexRange      = Rule{"index-range", "all"}
	UTF8            = Rule{"utf8", "all"}
	NoStack         = Rule{"no-stack", "Pyroscope"}
	OneValue        = Rule{"one-value", "Pyroscope"}
	SampleShape     = Rule{"sample-shape", "Elastic, Splunk"}
	SampleTwice     = Rule{"sample-twice", "hotprofile"}
	TimestampWindow = Rule{"timestamp-window", "Parca"}
	CaptureWindow   = Rule{"capture-window", "Parca"}
	Recent          = Rule{"recent", "Pyroscope"}
	Period          = Rule{"period", "Pyroscope, Parca"}
	TypeName        = Rule{"type-name", "Pyroscope"}
	KnownType       = Rule{"known-type", "Elastic, Splunk"}
	ProfileID       = Rule{"profile-id", "Parca"}
	LinkIDs         = Rule{"link-ids", "Parca"}
	NoSamples       = Rule{"no-samples", "Parca"}
	MaxSamples      = Rule{"max-samples", "Pyroscope"}
	MaxProfileBytes = Rule{"max-profile-bytes", "Pyroscope"}
	MaxRequestBytes = Rule{"max-request-bytes", "collector exporters"}
	LabelCount      = Rule{"label-count", "Pyroscope"}
	SeriesPerSample = Rule{"series-per-sample", "Pyroscope"}
	AttributeType   = Rule{"attribute-type", "Splunk, Parca"}
	AttributeKey    = Rule{"attribute-key", "Parca"}
	ServiceName     = Rule{"service-name", "Pyroscope"}
	FrameType       = Rule{"frame-type", "Elastic"}
	LocationPlace   = Rule{"location-place", "Elastic"}
	BuildID         = Rule{"build-id", "Elastic"}
)

// Options are what cannot be told from the profiles themselves. The zero value
// is right for what the receiver emits.
type Options struct {
	// Triggered: they have been through cpu_trigger, so each resource must have
	// a service.name.
	Triggered bool
	// Now, where not zero, is what profiles must be recent by.
	Now time.Time
	// SampleAttributes are the keys that samples may have beside thread.name and
	// those of hotprofile.
	SampleAttributes []string
	// BuildIDs: each mapping of a file must have a build id.
	BuildIDs bool
	// References: the data was marshalled with references into the dictionary
	// for its resource attributes, whose strings are then no orphans.
	References bool

	// MaxLabels is the most resource, scope and sample attributes together; 0
	// is what Pyroscope takes, 26.
	MaxLabels int
	// MaxSamples and MaxProfileBytes are of one profile, MaxRequestBytes of all;
	// 0 is 8,000, 1 MiB and 2 MiB.
	MaxSamples, MaxProfileBytes, MaxRequestBytes int
}

// Violation is a rule that was broken, Count times, first at Where.
type Violation struct {
	Rule
	Where string
	Count int
}

// String is one line for a log.
func (v Violation) String() string {
	s := fmt.Sprintf("%s (%s): %s", v.Name, v.Backends, v.Where)
	if v.Count > 1 {
		s += fmt.Sprintf(" and %d more", v.Count-1)
	}
	return s
}

// Check returns which rules the profiles break, in the order found, and nothing
// where they are good. It changes nothing.
func Check(p pprofile.Profiles, opts Options) []Violation {
	c := newChecker(p.Dictionary(), opts)
	c.tables()
	c.requestSize(p)
	for i, rp := range p.ResourceProfiles().All() {
		c.resourceProfiles(fmt.Sprintf("resource %d", i), rp)
	}
	c.orphans()
	return c.found
}

// CheckFatal is Check for tests: it reports each violation to t.
func CheckFatal(t interface {
	Helper()
	Errorf(format string, args ...any)
}, p pprofile.Profiles, opts Options,
) {
	t.Helper()
	for _, v := range Check(p, opts) {
		t.Errorf("OTLP rule broken: %s", v)
	}
}

// shape is what the samples of a type look like.
type shape struct {
	period string // type/unit
	// valued: one value and one timestamp per sample; else timestamps alone.
	valued bool
}

// shapes are the types that backends are known to understand, by type/unit.
func shapes() map[string][]shape {
	return map[string][]shape{
		"samples/count":       {{period: "cpu/nanoseconds"}, {period: "wall/nanoseconds"}},
		"alloc_objects/count": {{period: "space/bytes", valued: true}},
		"alloc_space/bytes":   {{period: "space/bytes", valued: true}},
		// How many of them one had its stack sampled.
		"off_cpu/nanoseconds":  {{period: "context_switches/count", valued: true}},
		"runqueue/nanoseconds": {{period: "context_switches/count", valued: true}},
	}
}

// frameTypes are the values of profile.frame.type.
func frameTypes() []string {
	return []string{
		"beam", "cpython", "dotnet", "go", "jvm", "kernel", "native",
		"perl", "php", "ruby", "rust", "v8js",
	}
}

type checker struct {
	opts    Options
	dict    pprofile.ProfilesDictionary
	shapes  map[string][]shape
	frames  []string
	allowed []string
	found   []Violation

	used map[string][]bool // by table
}

func newChecker(dict pprofile.ProfilesDictionary, opts Options) *checker {
	if opts.MaxLabels == 0 {
		opts.MaxLabels = 26
	}
	if opts.MaxSamples == 0 {
		opts.MaxSamples = 8000
	}
	if opts.MaxProfileBytes == 0 {
		opts.MaxProfileBytes = 1 << 20
	}
	if opts.MaxRequestBytes == 0 {
		opts.MaxRequestBytes = 2 << 20
	}
	return &checker{
		opts:   opts,
		dict:   dict,
		shapes: shapes(),
		frames: frameTypes(),
		allowed: append([]string{
			"thread.name", "hotprofile.stack.truncated", "hotprofile.dotnet.selected", "hotprofile.alloc.type",
		}, opts.SampleAttributes...),
		used: map[string][]bool{
			"string":    make([]bool, dict.StringTable().Len()),
			"attribute": make([]bool, dict.AttributeTable().Len()),
			"function":  make([]bool, dict.FunctionTable().Len()),
			"mapping":   make([]bool, dict.MappingTable().Len()),
			"location":  make([]bool, dict.LocationTable().Len()),
			"stack":     make([]bool, dict.StackTable().Len()),
			"link":      make([]bool, dict.LinkTable().Len()),
		},
	}
}

func (c *checker) broken(r Rule, format string, args ...any) {
	i := slices.IndexFunc(c.found, func(v Violation) bool { return v.Rule == r })
	if i >= 0 {
		c.found[i].Count++
		return
	}
	c.found = append(c.found, Violation{Rule: r, Where: fmt.Sprintf(format, args...), Count: 1})
}

// use marks an entry and reports whether it is there and seen for the first
// time.
func (c *checker) use(table string, i int32, where string) (ok, first bool) {
	used := c.used[table]
	if i < 0 || int(i) >= len(used) {
		c.broken(IndexRange, "%s refers to %s %d of %d", where, table, i, len(used))
		return false, false
	}
	first = !used[i]
	used[i] = true
	return true, first
}

func (c *checker) string(i int32, where string) string {
	if ok, _ := c.use("string", i, where); !ok {
		return ""
	}
	return c.dict.StringTable().At(int(i))
}

func (c *checker) requestSize(p pprofile.Profiles) {
	size := (&pprofile.ProtoMarshaler{}).ProfilesSize(p)
	if size > c.opts.MaxRequestBytes {
		c.broken(MaxRequestBytes, "the request has %d bytes, at most %d", size, c.opts.MaxRequestBytes)
	}
}
