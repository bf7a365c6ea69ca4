// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package attributes adds attributes to the profiles that the processor sends. The
// attributes explain why a profile was sent. The package also removes the attributes that
// identify one process.
package attributes

import (
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// stamp contains the attributes that explain why profiles are sent. Its openings are in the
// order in which they fired. Its phase is the position of the capture window relative to
// the trigger of the first opening.
type stamp struct {
	openings []*trigger.Opening
	phase    trigger.Phase
	indices  []int32 // indices of its attributes in the dictionary
	labels   int32   // index in Stamper.labels
}

// labels contains the attributes of a reason that are set on the resource. Backends create
// a series for each set of labels.
type labels []label

type label struct{ key, value string }

// OfReason lists the attributes of a reason that can also be set on the resource. The
// policy and the kind are always set on the resource.
var OfReason = []string{
	attr.Unit,
	attr.TriggerID,
	attr.TriggerMonitor,
	attr.TriggerPhase,
	attr.TriggerThreshold,
	attr.TriggerTime,
	attr.TriggerUntil,
	attr.TriggerValue,
	attr.TriggerWindow,
}

// Stamper sets reasons on profiles, and adds the attributes of the reasons to the
// dictionary. A Stamper is reused for later batches.
type Stamper struct {
	OnResource []string // attributes of OfReason to use as labels
	dictionary dictionary.Appender
	stamps     []stamp
	labels     []labels
}

// Begin starts a batch with the dictionary d. clean is true if d contains no key for which
// IsReason returns true.
func (s *Stamper) Begin(d pprofile.ProfilesDictionary, clean bool) {
	reuse := isAdded
	if clean && d.LinkTable().Len() <= 1 { // route attributes are only added to samples with links
		reuse = nil
	}
	s.dictionary.Reset(d, reuse)
}

// End releases the batch.
func (s *Stamper) End() {
	clear(s.stamps)
	s.stamps = s.stamps[:0]
	clear(s.labels)
	s.labels = s.labels[:0]
	s.dictionary.Release()
}

// Stamp sets the reason for the given openings on a profile that was captured in [start,
// end). It returns the index of the resource's labels, which is the argument of Label.
// Stamp searches linearly, because a batch has few different reasons.
func (s *Stamper) Stamp(p pprofile.Profile, openings []*trigger.Opening, start, end time.Time) (labels int32) {
	phase := openings[0].Phase(start, end)
	n := slices.IndexFunc(s.stamps, func(of stamp) bool { return of.phase == phase && slices.Equal(of.openings, openings) })
	if n < 0 {
		n = len(s.stamps)
		s.stamps = append(s.stamps, stamp{openings: openings, phase: phase})
		s.add(&s.stamps[n])
	}
	p.AttributeIndices().Append(s.stamps[n].indices...)
	return s.stamps[n].labels
}

// Attribute returns the index of an attribute in the dictionary.
func (s *Stamper) Attribute(key, value string) int32 {
	return s.dictionary.Attribute(key, dictionary.Str(value))
}

// Label sets the labels with the given index on a resource. It removes the
// labels of other gates.
func (s *Stamper) Label(resource pcommon.Map, labels int32) {
	resource.RemoveIf(func(key string, _ pcommon.Value) bool { return IsReason(key) })
	for _, l := range s.labels[labels] {
		resource.PutStr(l.key, l.value)
	}
}

// labelled returns the index of labels, and adds the labels if they are new. It searches
// linearly, because a batch has few different labels.
func (s *Stamper) labelled(l labels) int32 {
	if n := slices.IndexFunc(s.labels, func(have labels) bool { return slices.Equal(have, l) }); n >= 0 {
		return int32(n)
	}
	s.labels = append(s.labels, l)
	return int32(len(s.labels) - 1)
}

// add adds the attributes of a stamp to the dictionary.
func (s *Stamper) add(to *stamp) {
	first := to.openings[0]
	window := first.Window
	if first.Manual { // by hand or by alert
		window = string(first.Kind())
	}
	policies := make([]string, len(to.openings))
	for i, o := range to.openings {
		policies[i] = o.Policy
	}
	why := reason.Reason{
		ID: first.ID, Unit: first.Unit, Policy: strings.Join(policies, ","), Monitor: first.Monitor, Window: window,
		Value: reason.Round(first.Value), Threshold: reason.Round(first.Threshold),
		Time: first.FiredAt, Until: first.Until(), Phase: string(to.phase),
	}
	of := labels{{attr.TriggerPolicy, first.Policy}, {attr.TriggerKind, string(first.Kind())}}
	why.Put(func(a attribute.KeyValue) {
		key, value := string(a.Key), reason.Text(a.Value)
		to.indices = append(to.indices, s.dictionary.Attribute(key, dictionary.Str(value)))
		if slices.Contains(s.OnResource, key) {
			of = append(of, label{key, value})
		}
	})
	to.labels = s.labelled(of)
}

// isAdded reports whether a Stamper may add an attribute with this key. These are the keys
// of reasons and of routes. A sample may already have a route before it is stamped.
func isAdded(key string) bool { return IsReason(key) || key == attr.HTTPRoute || key == attr.RPCMethod }

// IsReason reports whether a key belongs to an attribute that a gate adds to explain why a
// profile was sent.
func IsReason(key string) bool {
	return key == attr.Unit || key == attr.Request || strings.HasPrefix(key, attr.TriggerPrefix)
}

// HasReason reports whether another gate may have stamped profiles with this dictionary.
func HasReason(d pprofile.ProfilesDictionary) bool { return hasString(d, IsReason) }

func hasString(d pprofile.ProfilesDictionary, is func(string) bool) bool {
	for _, s := range d.StringTable().All() {
		if is(s) {
			return true
		}
	}
	return false
}

// SetServiceName sets service.name on a resource that has no service name.
func SetServiceName(attributes pcommon.Map) {
	if v, ok := attributes.Get(attr.ServiceName); ok && v.AsString() != "" {
		return
	}
	name := identify.UnknownService
	if v, ok := attributes.Get(attr.ExecutableName); ok && v.Str() != "" {
		name += ":" + v.Str()
	}
	attributes.PutStr(attr.ServiceName, name)
}

// OfProcess lists the resource attributes that differ between processes of the same
// program. Backends create a series for each combination of resource attributes. These
// attributes are therefore removed from profiles before they are sent, except for
// keep_process_attributes. The names are from semantic conventions 1.43.
var OfProcess = []string{
	attr.Command,
	attr.CommandArgs,
	attr.CommandLine,
	attr.CreationTime,
	attr.ExecutablePath,
	attr.GroupLeaderPID,
	attr.Interactive,
	attr.Cgroup,
	attr.ParentPID,
	attr.PID,
	attr.SessionLeaderPID,
	attr.Title,
	attr.VPID,
	attr.WorkingDirectory,
}

// Filter removes process attributes from resources.
type Filter map[string]bool // names to remove

// NewFilter returns a filter that removes the attributes in OfProcess except those in keep.
func NewFilter(keep []string) Filter {
	remove := Filter{}
	for _, name := range OfProcess {
		if !slices.Contains(keep, name) {
			remove[name] = true
		}
	}
	return remove
}

// ReferredTo reports whether a dictionary contains the key of an attribute to remove. A
// resource may refer to the dictionary for its attributes. After such an attribute is
// removed, the strings of its key and value remain in the dictionary.
func (f Filter) ReferredTo(d pprofile.ProfilesDictionary) bool {
	return hasString(d, func(s string) bool { return strings.HasPrefix(s, "process.") && f[s] })
}

// Apply removes the attributes of the filter from a resource.
func (f Filter) Apply(resource pcommon.Map) {
	resource.RemoveIf(func(name string, _ pcommon.Value) bool { return f[name] })
}
