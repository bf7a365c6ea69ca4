// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformancetest checks OTLP profiles against what every backend that the
// project knows of accepts, and against what the project promises beyond that.
// It shares no code with what builds profiles, so that one's mistakes are not
// the other's.
package conformancetest

import (
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// Options are what cannot be told from the profiles themselves. The zero value
// is right for what the receiver emits.
type Options struct {
	// Triggered: they have been through cpu_trigger, so each resource must have
	// a service.name.
	Triggered bool
	// Split: an exporter has split or merged requests since. Each part has the
	// dictionary of all: entries may be orphans, and a part is larger than the
	// exporter's max_size by it, and the first part may hold nothing but that.
	// MaxRequestBytes is then what a gRPC server takes.
	Split bool
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

	// MaxLabels is the most resource, scope and sample attributes together that
	// are promised; 0 is no promise beyond the 26 that Pyroscope takes.
	MaxLabels int
	// MaxSamples and MaxProfileBytes are of one profile, MaxRequestBytes of all;
	// 0 is 8,000, 1 MiB and 2 MiB, or 4 MiB if Split.
	MaxSamples, MaxProfileBytes, MaxRequestBytes int
}

// withDefaults returns the options with every limit set.
func (o Options) withDefaults() Options {
	limit := func(n *int, standard int) {
		if *n == 0 {
			*n = standard
		}
	}
	limit(&o.MaxSamples, 8000)
	limit(&o.MaxProfileBytes, 1<<20)
	if o.Split {
		limit(&o.MaxRequestBytes, 4<<20)
	}
	limit(&o.MaxRequestBytes, 2<<20)
	return o
}

// What Pyroscope takes; the rules name where it says so.
const (
	maxLabels      = 26
	maxLabelName   = 1024
	maxLabelValue  = 2048
	maxStackDepth  = 1000
	oldest, newest = time.Hour, 10 * time.Minute
)

// Violation is a rule that was broken, Count times, first at Where, which names
// the resource, profile and sample.
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
	return check(p, (&pprofile.ProtoMarshaler{}).ProfilesSize(p), opts)
}

// CheckRequest is Check for the body of a request as it was on the wire: an
// ExportProfilesServiceRequest, after any compression was undone.
func CheckRequest(body []byte, opts Options) []Violation {
	w := wire{}
	w.request(body)
	if slices.ContainsFunc(w.found, func(v Violation) bool { return v.Rule != InlineAttributes }) {
		return w.found
	}
	// The decoder of profiles alone takes attributes for references.
	r := pprofileotlp.NewExportRequest()
	if err := r.UnmarshalProto(body); err != nil {
		w.broken(WireFormat, "the request: %v", err)
		return w.found
	}
	return append(w.found, check(r.Profiles(), len(body), opts)...)
}

func check(p pprofile.Profiles, size int, opts Options) []Violation {
	c := newChecker(p.Dictionary(), opts.withDefaults())
	if size > c.opts.MaxRequestBytes {
		c.broken(MaxRequestBytes, "the request has %d bytes, at most %d", size, c.opts.MaxRequestBytes)
	}
	if p.ResourceProfiles().Len() == 0 && !c.opts.Split {
		c.broken(EmptyRequest, "the request has no resource")
	}
	c.tables()
	for i, rp := range p.ResourceProfiles().All() {
		c.resourceProfiles(fmt.Sprintf("resource %d", i), rp)
	}
	if !c.opts.Split {
		c.orphans()
	}
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

// findings are the violations so far, each rule once.
type findings struct {
	found []Violation
}

func (f *findings) broken(r Rule, format string, args ...any) {
	i := slices.IndexFunc(f.found, func(v Violation) bool { return v.Rule == r })
	if i >= 0 {
		f.found[i].Count++
		return
	}
	f.found = append(f.found, Violation{Rule: r, Where: fmt.Sprintf(format, args...), Count: 1})
}

type checker struct {
	findings
	opts    Options
	dict    pprofile.ProfilesDictionary
	shapes  map[string][]shape
	frames  []string
	allowed []string

	used map[string][]bool // by table
	keys map[string]bool   // the sets of labels that were checked
}

func newChecker(dict pprofile.ProfilesDictionary, opts Options) *checker {
	return &checker{
		opts:   opts,
		dict:   dict,
		shapes: shapes(),
		frames: frameTypes(),
		allowed: append([]string{
			"thread.name", "hotprofile.stack.truncated", "hotprofile.dotnet.selected", "hotprofile.alloc.type",
		}, opts.SampleAttributes...),
		keys: make(map[string]bool),
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
