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
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
)

// These constants limit the memory of unwritten profiles, in estimated bytes. A file that
// exceeds maxFileMemory is finished, and further profiles go to a new file.
const (
	maxFileMemory = 16 << 20
	maxMemory     = 64 << 20
	// maxAge and maxAgeTriggered limit the age of files for which profiles keep
	// arriving. The limits are needed because the profiles of an open file are only in
	// memory. maxAgeTriggered applies to files of a gate that stays open. maxAge
	// applies to files without a trigger.
	maxAge          = time.Minute
	maxAgeTriggered = 5 * time.Minute
)

// finishReason is the reason why a file was finished, for the metric and the log.
type finishReason string

const (
	finishedIdle       finishReason = "idle"
	finishedByTrigger  finishReason = "trigger"
	finishedByAge      finishReason = "age"
	finishedByMemory   finishReason = "memory"
	finishedByShutdown finishReason = "shutdown"
)

// openFiles contains the files to which profiles are still added. The files are only in
// memory. The exporter's lock guards openFiles.
type openFiles struct {
	units         map[string]*unitFiles
	memory        int // estimated bytes of all units and files
	maxFileMemory int
}

// unitFiles contains the open files of a unit. A unit has at least one open file.
type unitFiles struct {
	name string
	// trigger is the newest trigger of the unit. Late profiles of an older trigger go
	// into a separate file, and do not finish the files of the newest trigger.
	trigger   string
	triggered time.Time
	files     map[fileKey]*openFile
}

// These constants estimate the sizes of a unit, of a file, and of a service of a file, in
// bytes. The sizes do not include texts.
const (
	unitSize    = 256
	fileSize    = 1 << 10
	serviceSize = 256
)

func (u *unitFiles) size() int { return unitSize + len(u.name) + len(u.trigger) }

// fileKey identifies a file of a unit. Values are added up only if they have the same type
// and were measured by the same profiler.
type fileKey struct {
	trigger string
	typ     dictionary.ProfileType
	// origin is the value of hotprofile.origin. scope is the name of
	// the instrumentation scope.
	origin, scope string
	// moment is Part.Moment.
	moment int64
}

type openFile struct {
	fileKey
	unit, policy string
	of           *unitFiles
	at           time.Time // time in the file name
	begun, last  time.Time // arrival of the first and last profile, by the exporter's clock
	pprof        *pprofconv.Builder
	// services lists the services of the profiles, in the order of their first profile.
	// index maps the name of each service to its position in services.
	services []serviceShare
	index    map[string]int
	// condition is the condition of the first profile. resource is the resource of
	// the first profile with a container. If no profile has a container, resource is
	// the resource of the first profile. A process may have profiles from before it
	// was moved into its container.
	resource  hotunitsextension.Resource
	contained bool
	condition []attribute.KeyValue
	// identity is the estimated memory of all fields except resource and pprof, in bytes.
	identity int

	reason finishReason // set when the file is finished
}

// serviceShare is the part of a file that belongs to one service. value is the
// sum of the service's values.
type serviceShare struct {
	service, executable string
	value               float64
}

// size returns the estimated memory of the file, in bytes.
func (f *openFile) size() int { return f.identity + f.resource.Size + f.pprof.Size() }

// add adds the values of a profile to its service.
func (f *openFile) add(from source, value float64) {
	i, known := f.index[from.service]
	if !known {
		i = len(f.services)
		f.index[from.service] = i
		f.services = append(f.services, serviceShare{service: from.service, executable: from.executable})
		f.identity += serviceSize + len(from.service) + len(from.executable)
	}
	f.services[i].value += value
}

// main returns the service with the largest part of the file. The name of the file
// contains the name of this service.
func (f *openFile) main() serviceShare {
	return slices.MaxFunc(f.services, func(a, b serviceShare) int { return cmp.Compare(a.value, b.value) })
}

// name returns the file's name without its extension.
func (f *openFile) name() string {
	return fileName(f.main().service, f.unit, f.at, f.policy, pprofconv.TypeName(f.typ))
}

// source describes where profiles come from, according to their resource and scope.
type source struct {
	service, executable string
	// unit is the unit of profiles in which cpu_trigger has not named a unit. policy is
	// the policy that the resource names.
	unit, policy  string
	origin, scope string
	resource      pcommon.Map
	contained     bool // the resource has container.id
}

// sourceOf returns the source that a resource describes. It does not set the scope.
func sourceOf(resource pcommon.Map) source {
	text := func(key string) (s string) {
		if v, ok := resource.Get(key); ok {
			s, _ = pprofconv.TextOf(v)
		}
		return s
	}
	s := source{
		service:    text(attr.ServiceName),
		executable: cmp.Or(text(attr.ExecutablePath), text(attr.ExecutableName)),
		unit:       text(attr.ContainerID),
		policy:     text(attr.TriggerPolicy),
		origin:     text(attr.Origin),
		resource:   resource,
	}
	if s.service == "" {
		s.service = "unknown_service"
		if name := text(attr.ExecutableName); name != "" {
			s.service += ":" + name
		}
	}
	s.contained = s.unit != ""
	if pid := text(attr.PID); s.unit == "" && pid != "" {
		s.unit = "pid-" + pid
	}
	s.unit = cmp.Or(s.unit, s.service)
	return s
}

func newOpenFiles() openFiles {
	return openFiles{units: make(map[string]*unitFiles), maxFileMemory: maxFileMemory}
}

// add adds samples of a part of a profile to its file, beginning with the sample at index
// from. It stops when the file is full, or when memory has grown by more than room. It
// returns the files that are now finished.
func (o *openFiles) add(d dictionary.Reader, of source, p pprofconv.Part, from, room int, now time.Time) (done []*openFile, a pprofconv.Addition) {
	attributes := pprofconv.Attributes(d, p.Profile)
	unit := cmp.Or(attributes[attr.Unit], of.unit)
	trigger := attributes[attr.TriggerID]
	u, done := o.unit(unit, trigger, triggerTime(attributes))
	key := fileKey{trigger: trigger, typ: pprofconv.TypeOf(d, p.Profile), origin: of.origin, scope: of.scope, moment: p.Moment}
	before := 0
	f := u.files[key]
	if f == nil {
		f = &openFile{
			fileKey: key,
			unit:    unit,
			of:      u,
			policy:  cmp.Or(of.policy, attributes[attr.TriggerPolicy], "none"),
			at:      timeOf(attributes, p.Profile, now),
			begun:   now,
			pprof:   pprofconv.NewBuilder(key.typ, pprofconv.Options{Origin: of.origin}),
			index:   make(map[string]int),

			resource:  hotunitsextension.ResourceOf(of.resource, notOfFile),
			contained: of.contained,
			condition: conditionOf(attributes),
		}
		for _, kv := range f.condition {
			f.identity += len(kv.Value.String())
		}
		for _, text := range []string{
			f.unit, f.policy, key.trigger, key.origin, key.scope,
			key.typ.Sample, key.typ.Unit, key.typ.Period, key.typ.PeriodUnit,
		} {
			f.identity += len(text)
		}
		f.identity += fileSize
		u.files[key] = f
	} else {
		before = f.size()
		if of.contained && !f.contained {
			f.resource, f.contained = hotunitsextension.ResourceOf(of.resource, notOfFile), true
		}
	}
	f.last = now
	a = f.pprof.Add(d, p, attributes, from, min(room, o.maxFileMemory-f.size()))
	f.add(of, a.Sum)
	o.memory += f.size() - before
	if f.size() > o.maxFileMemory {
		done = append(done, o.finish(f, finishedByMemory))
	}
	return done, a
}

// unit returns the open files of a unit. A newer trigger finishes the files of the older
// trigger. In this case, unit also returns the finished files.
func (o *openFiles) unit(name, trigger string, triggered time.Time) (*unitFiles, []*openFile) {
	var done []*openFile
	u := o.units[name]
	if u != nil && u.trigger != trigger && !triggered.Before(u.triggered) {
		done = o.finishAll(func(f *openFile) (finishReason, bool) { return finishedByTrigger, f.of == u })
		u = nil
	}
	if u == nil {
		u = &unitFiles{name: name, trigger: trigger, triggered: triggered, files: make(map[fileKey]*openFile)}
		o.units[name] = u
		o.memory += u.size()
	}
	return u, done
}

// largest returns the file with the largest memory. If no file is open, it returns nil.
func (o *openFiles) largest() (largest *openFile) {
	for _, u := range o.units {
		for _, f := range u.files {
			if largest == nil || f.size() > largest.size() {
				largest = f
			}
		}
	}
	return largest
}

// due finishes the files that are idle or too old.
func (o *openFiles) due(now time.Time, idle time.Duration) []*openFile {
	return o.finishAll(func(f *openFile) (finishReason, bool) {
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

// all finishes all files.
func (o *openFiles) all() []*openFile {
	return o.finishAll(func(*openFile) (finishReason, bool) { return finishedByShutdown, true })
}

// finishAll calls which for each file. It finishes each file for which which returns
// true. The finished files are in the order in which they were begun.
func (o *openFiles) finishAll(which func(*openFile) (finishReason, bool)) []*openFile {
	var done []*openFile
	for _, u := range o.units {
		for _, f := range u.files {
			if reason, ok := which(f); ok {
				done = append(done, o.finish(f, reason))
			}
		}
	}
	slices.SortFunc(done, func(a, b *openFile) int {
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.unit, b.unit),
			strings.Compare(pprofconv.TypeName(a.typ), pprofconv.TypeName(b.typ)), strings.Compare(a.origin, b.origin),
			cmp.Compare(a.moment, b.moment))
	})
	return done
}

// finish removes a file. If it was the last file of its unit,
// finish also removes the unit.
func (o *openFiles) finish(f *openFile, reason finishReason) *openFile {
	delete(f.of.files, f.fileKey)
	o.memory -= f.size()
	if len(f.of.files) == 0 {
		delete(o.units, f.of.name)
		o.memory -= f.of.size()
	}
	f.reason = reason
	return f
}

// timeOf returns the time for the name of a profile's file. This is the time of
// the trigger. Without a trigger, it is the time of the profile. If the profile
// has no time either, it is now.
func timeOf(attributes map[string]string, p pprofile.Profile, now time.Time) time.Time {
	if t := triggerTime(attributes); !t.IsZero() {
		return t
	}
	if p.Time() != 0 {
		return p.Time().AsTime()
	}
	return now
}

// triggerTime returns the time when the trigger fired, or the zero time without a trigger.
func triggerTime(attributes map[string]string) time.Time {
	t, _ := time.Parse(time.RFC3339, attributes[attr.TriggerTime])
	return t
}
