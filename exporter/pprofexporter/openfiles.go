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
	// maxAge and maxAgeTriggered finish files for which profiles keep arriving: without
	// a trigger, and of a gate that stays open. Until then they are in memory alone.
	maxAge          = time.Minute
	maxAgeTriggered = 5 * time.Minute
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

// fileKey identifies a file of a unit. Values are only added if they are of one type
// and were measured by one profiler.
type fileKey struct {
	trigger string
	typ     dictionary.ProfileType
	// origin is hotprofile.origin, scope the name of the instrumentation scope.
	origin, scope string
}

type openFile struct {
	fileKey
	unit, policy string
	at           time.Time // in the name
	begun, last  time.Time // the first and last profile, by the exporter's clock
	pprof        *builder
	// services are those of the profiles, in the order of their first one.
	services []serviceShare
}

// serviceShare is a service's part of a file: the sum of its values.
type serviceShare struct {
	service, executable string
	value               float64
}

// add adds the values of a profile to its service.
func (f *openFile) add(from source, value float64) {
	i := slices.IndexFunc(f.services, func(s serviceShare) bool { return s.service == from.service })
	if i < 0 {
		i = len(f.services)
		f.services = append(f.services, serviceShare{service: from.service, executable: from.executable})
	}
	f.services[i].value += value
}

// main returns the service with the largest part of the file, which has its name.
func (f *openFile) main() serviceShare {
	return slices.MaxFunc(f.services, func(a, b serviceShare) int { return cmp.Compare(a.value, b.value) })
}

// source is what the resource and scope of profiles say about where they are from.
type source struct {
	service, executable string
	// unit is the unit of profiles for which cpu_trigger named none; policy is that
	// of the resource.
	unit, policy  string
	origin, scope string
}

// sourceOf returns what a resource says. The scope is not set.
func sourceOf(resource pcommon.Map) source {
	text := func(key string) string { return dictionary.ResourceText(resource, key) }
	s := source{
		service:    text(attr.ServiceName),
		executable: cmp.Or(text(attr.ExecutablePath), text(attr.ExecutableName)),
		unit:       text(attr.ContainerID),
		policy:     text(attr.TriggerPolicy),
		origin:     text(attr.Origin),
	}
	if s.service == "" {
		s.service = "unknown_service"
		if name := text(attr.ExecutableName); name != "" {
			s.service += ":" + name
		}
	}
	if pid := text(attr.PID); s.unit == "" && pid != "" {
		s.unit = "pid-" + pid
	}
	s.unit = cmp.Or(s.unit, s.service)
	return s
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
func (o *openFiles) add(d dictionary.Reader, from source, p pprofile.Profile, now time.Time) (done []finished, malformed int) {
	attributes := make(map[string]string)
	for k, v := range d.Attributes(p.AttributeIndices()) {
		attributes[k] = v.AsString()
	}
	unit := cmp.Or(attributes[attr.Unit], from.unit)
	u, done := o.unit(unit, attributes)
	key := fileKey{trigger: attributes[attr.TriggerID], typ: d.ProfileType(p), origin: from.origin, scope: from.scope}
	f := u.files[key]
	if f == nil {
		f = &openFile{
			fileKey: key,
			unit:    unit,
			policy:  cmp.Or(from.policy, attributes[attr.TriggerPolicy], "none"),
			at:      timeOf(attributes, p, now),
			begun:   now,
			pprof:   newBuilder(key.typ, from.origin),
		}
		o.memory += f.pprof.size
		u.files[key] = f
	}
	f.last = now
	before := f.pprof.size
	malformed, value := f.pprof.add(d, p)
	f.add(from, value)
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
		age := maxAge
		if f.trigger != "" {
			age = maxAgeTriggered
		}
		return finishedByAge, now.Sub(f.begun) >= age
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
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.unit, b.unit), strings.Compare(typeName(a.typ), typeName(b.typ)), strings.Compare(a.origin, b.origin))
	})
	return done
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
