// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformancetest checks OTLP profiles in tests. It checks that every known
// backend accepts the profiles, and that the profiles keep the other promises of
// hotprofile. The package shares no code with the packages that build profiles, except
// for the attribute keys. Otherwise, it could not find mistakes in these packages.
package conformancetest

import (
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// Options holds the settings of a check that are not part of the profiles. The zero value
// is for the output of the receiver.
type Options struct {
	// Triggered is true if the profiles have passed cpu_trigger. Each resource
	// must then have a service.name.
	Triggered bool
	// Split is true if an exporter has split or merged requests. Each part contains the
	// whole dictionary, so entries may be orphans. For the same reason, a part may be
	// larger than the exporter's max_size. The first part may contain only the
	// dictionary. The default of MaxRequestBytes is then the limit of a gRPC server.
	Split bool
	// Profiles must have times close to Now. If Now is zero, times are not checked.
	Now time.Time
	// SampleAttributes lists the keys that samples may have in addition to
	// thread.name and the keys of hotprofile.
	SampleAttributes []string
	// BuildIDs is true if each mapping of a file must have a build id.
	BuildIDs bool
	// References is true if attributes of resources and scopes are references
	// into the dictionary. Collectors send such references since 0.161 (HTTP) and
	// 0.163 (gRPC). If References is set, all these attributes must be references
	// on the wire. The strings that the references use do not count as orphans,
	// either on the wire or in decoded profiles.
	References bool

	// MaxLabels is the maximum number of attributes of a resource, scope and sample
	// together. If it is 0, only Pyroscope's limit of 26 applies.
	MaxLabels int
	// MaxSamples and MaxProfileBytes limit one profile. MaxRequestBytes limits a request.
	// The defaults are 8,000 samples, 1 MiB and 2 MiB. If Split is set, the default of
	// MaxRequestBytes is 4 MiB.
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

// These are the limits of Pyroscope. The comments on the rules contain the names of
// Pyroscope's settings.
const (
	maxLabels      = 26
	maxLabelName   = 1024
	maxLabelValue  = 2048
	maxStackDepth  = 1000
	oldest, newest = time.Hour, 10 * time.Minute
)

// Violation is a rule that was broken Count times. Where names the resource, profile and
// sample of the first violation.
type Violation struct {
	Rule
	Where string
	Count int
}

func (v Violation) String() string {
	s := fmt.Sprintf("%s (%s): %s", v.Name, v.Backends, v.Where)
	if v.Count > 1 {
		s += fmt.Sprintf(" and %d more", v.Count-1)
	}
	return s
}

// Check returns the rules that the profiles break, in the order in which they were found.
// It does not change the profiles.
func Check(p pprofile.Profiles, opts Options) []Violation {
	return check(p, (&pprofile.ProtoMarshaler{}).ProfilesSize(p), opts)
}

// CheckRequest is like Check, but checks the decompressed body of a request. The body is
// an ExportProfilesServiceRequest.
func CheckRequest(body []byte, opts Options) []Violation {
	w := wire{referenced: opts.References}
	w.request(body)
	if slices.ContainsFunc(w.found, func(v Violation) bool { return v.Rule != InlineAttributes && v.Rule != ReferencedAttributes }) {
		return w.found
	}
	// UnmarshalProto resolves references, so the other rules apply both to requests with
	// references and to requests with inline attributes.
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

// CheckFatal reports each violation that Check returns as an error of the test.
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

// findings holds the violations that were found so far, at most one for each rule.
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
	keys map[string]bool   // sets of labels that were already checked
	// begins holds the start times of profiles that have passed
	// cpu_trigger, with their series.
	begins map[string]bool
}

func newChecker(dict pprofile.ProfilesDictionary, opts Options) *checker {
	return &checker{
		opts:   opts,
		dict:   dict,
		shapes: shapes(),
		frames: frameTypes(),
		allowed: append([]string{
			attr.ThreadName, attr.StackTruncated, attr.DotnetSelected, attr.AllocType, attr.Wait, attr.Transport,
			attr.Request, attr.HTTPRoute, attr.RPCMethod,
		}, opts.SampleAttributes...),
		keys:   make(map[string]bool),
		begins: make(map[string]bool),
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

// use marks an entry as used. ok reports whether the entry exists, and first reports whether
// this is the first use of the entry.
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
