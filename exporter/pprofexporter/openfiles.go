// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// Bounds of the memory that open files hold, as estimated. A file that exceeds its
// own is finished, and the next part begins. If all together exceed theirs, the
// largest is finished.
const (
	maxFileMemory = 16 << 20
	maxMemory     = 64 << 20
	// maxAge finishes files without a trigger: they would stay open for as long as
	// profiles arrive.
	maxAge = time.Minute
)

// finishReason is why a file was finished, for the metric and the log.
type finishReason string

const (
	finishedIdle       finishReason = "idle"
	finishedByTrigger  finishReason = "trigger"
	finishedByAge      finishReason = "age"
	finishedByMemory   finishReason = "memory"
	finishedByShutdown finishReason = "shutdown"
)

// openFiles are the files that profiles are added to; they are in memory alone. The
// exporter's lock guards them.
type openFiles struct {
	units                    map[string]*unitFiles
	memory                   int // of all files; the sum of their pprof.size
	maxFileMemory, maxMemory int
}

// unitFiles are the open files of a unit.
type unitFiles struct {
	// trigger is the newest seen. Files of older ones get what arrives late, and do
	// not finish those of the newest.
	trigger   string
	triggered time.Time
	files     map[fileKey]*openFile
}

// fileKey identifies a file of a unit.
type fileKey struct{ trigger, profileType string }

type openFile struct {
	fileKey
	service, unit, policy string
	at                    time.Time // in the name
	begun, last           time.Time // the first and last profile, by the exporter's clock
	pprof                 *builder
}

// finished is a file to be written.
type finished struct {
	*openFile
	reason finishReason
}

func newOpenFiles() openFiles {
	return openFiles{units: make(map[string]*unitFiles), maxFileMemory: maxFileMemory, maxMemory: maxMemory}
}

// add adds a profile to its file. It returns the files that this finishes and how
// many events were malformed.
func (o *openFiles) add(d dictionary.Reader, resource pcommon.Map, p pprofile.Profile, now time.Time) (done []finished, malformed int) {
	attributes := make(map[string]string)
	for k, v := range d.Attributes(p.AttributeIndices()) {
		attributes[k] = v.AsString()
	}
	unit := unitOf(attributes, resource)
	u, done := o.unit(unit, attributes)
	t := d.ProfileType(p)
	key := fileKey{trigger: attributes[attr.TriggerID], profileType: typeName(t)}
	f := u.files[key]
	if f == nil {
		f = &openFile{
			fileKey: key,
			service: serviceOf(resource),
			unit:    unit,
			policy:  policyOf(attributes, resource),
			at:      timeOf(attributes, p, now),
			begun:   now,
			pprof:   newBuilder(t),
		}
		o.memory += f.pprof.size
		u.files[key] = f
	}
	f.last = now
	before := f.pprof.size
	malformed = f.pprof.add(d, resource, p)
	o.memory += f.pprof.size - before
	return append(done, o.shrink(f)...), malformed
}

// unit returns the open files of a unit, and those that a newer trigger finishes.
func (o *openFiles) unit(name string, attributes map[string]string) (*unitFiles, []finished) {
	trigger, triggered := attributes[attr.TriggerID], triggerTime(attributes)
	var done []finished
	u := o.units[name]
	if u != nil && u.trigger != trigger && !triggered.Before(u.triggered) {
		done = o.finish(func(f *openFile) (finishReason, bool) { return finishedByTrigger, f.unit == name })
		u = nil
	}
	if u == nil {
		u = &unitFiles{trigger: trigger, triggered: triggered, files: make(map[fileKey]*openFile)}
		o.units[name] = u
	}
	return u, done
}

// shrink finishes f if it is too large, then the largest files until all together
// are within the bound.
func (o *openFiles) shrink(f *openFile) []finished {
	var done []finished
	one := func(f *openFile) {
		done = append(done, o.finish(func(open *openFile) (finishReason, bool) { return finishedByMemory, open == f })...)
	}
	if f.pprof.size > o.maxFileMemory {
		one(f)
	}
	for o.memory > o.maxMemory {
		one(o.largest())
	}
	return done
}

func (o *openFiles) largest() (largest *openFile) {
	for _, u := range o.units {
		for _, f := range u.files {
			if largest == nil || f.pprof.size > largest.pprof.size {
				largest = f
			}
		}
	}
	return largest
}

// due finishes files that are idle or too old.
func (o *openFiles) due(now time.Time, idle time.Duration) []finished {
	return o.finish(func(f *openFile) (finishReason, bool) {
		if now.Sub(f.last) >= idle {
			return finishedIdle, true
		}
		return finishedByAge, f.trigger == "" && now.Sub(f.begun) >= maxAge
	})
}

// all finishes every file.
func (o *openFiles) all() []finished {
	return o.finish(func(*openFile) (finishReason, bool) { return finishedByShutdown, true })
}

// finish removes the files that which reports, and returns them in the order in
// which they were begun.
func (o *openFiles) finish(which func(*openFile) (finishReason, bool)) []finished {
	var done []finished
	for name, u := range o.units {
		for key, f := range u.files {
			if reason, ok := which(f); ok {
				done = append(done, finished{f, reason})
				o.memory -= f.pprof.size
				delete(u.files, key)
			}
		}
		if len(u.files) == 0 {
			delete(o.units, name)
		}
	}
	slices.SortFunc(done, func(a, b finished) int {
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.unit, b.unit), strings.Compare(a.profileType, b.profileType))
	})
	return done
}

// unitOf returns the unit that cpu_trigger named, else the closest to it.
func unitOf(attributes map[string]string, resource pcommon.Map) string {
	if u := attributes[attr.Unit]; u != "" {
		return u
	}
	if id := dictionary.ResourceText(resource, attr.ContainerID); id != "" {
		return id
	}
	if pid := dictionary.ResourceText(resource, attr.PID); pid != "" {
		return "pid-" + pid
	}
	return serviceOf(resource)
}

func serviceOf(resource pcommon.Map) string {
	if s := dictionary.ResourceText(resource, attr.ServiceName); s != "" {
		return s
	}
	if name := dictionary.ResourceText(resource, attr.ExecutableName); name != "" {
		return "unknown_service:" + name
	}
	return "unknown_service"
}

// policyOf returns the policy that opened the gate first, none for profiles that
// have not passed a gate.
func policyOf(attributes map[string]string, resource pcommon.Map) string {
	return cmp.Or(dictionary.ResourceText(resource, attr.TriggerPolicy), attributes[attr.TriggerPolicy], "none")
}

// timeOf returns the time in the name of a profile's file.
func timeOf(attributes map[string]string, p pprofile.Profile, now time.Time) time.Time {
	if t := triggerTime(attributes); !t.IsZero() {
		return t
	}
	if p.Time() != 0 {
		return p.Time().AsTime()
	}
	return now
}

// triggerTime returns when the trigger fired, the zero time without one.
func triggerTime(attributes map[string]string) time.Time {
	t, _ := time.Parse(time.RFC3339, attributes[attr.TriggerTime])
	return t
}
