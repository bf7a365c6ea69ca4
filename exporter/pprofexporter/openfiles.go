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

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
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

// openFiles contains the files to which profiles are still added. These files exist only
// in memory. The exporter's lock guards openFiles.
type openFiles struct {
	files         map[fileKey]*openFile
	memory        int // estimated bytes of all files
	maxFileMemory int
}

// These constants estimate the sizes of a file, and of a service of a file, in bytes. The
// sizes do not include strings.
const (
	fileSize    = 1 << 10
	serviceSize = 256
)

// fileKey identifies a file. Values of different types, and values of different profilers,
// must not be added up, so they go to different files.
type fileKey struct {
	unit, trigger string
	typ           dictionary.ProfileType
	// origin is the value of hotprofile.origin. scope is the name of
	// the instrumentation scope.
	origin, scope string
	// moment is Part.Moment.
	moment int64
}

type openFile struct {
	fileKey
	// why is the reason of the first profile, without times.
	why         reason.Reason
	triggered   time.Time // zero without a trigger
	at          time.Time // time in the file name
	begun, last time.Time // arrival of the first and last profile, by the exporter's clock
	pprof       *pprofconv.Builder
	// services lists the services of the profiles, in the order of their first profile.
	// index maps the name of each service to its position in services.
	services []serviceShare
	index    map[string]int
	// resource is the resource of the first profile with a container. If no profile has a
	// container, resource is the resource of the first profile. A process may have
	// profiles from before it was moved into its container.
	resource  hotunitsextension.Resource
	contained bool
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

// add adds the value of a profile to the service of the profile's source.
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
	return fileName(f.main().service, f.unit, f.at, f.why.Policy, pprofconv.TypeName(f.typ))
}

// source describes where profiles come from, according to their resource and scope.
type source struct {
	service, executable string
	// unit is the unit that the resource describes. It is used if cpu_trigger did not
	// name a unit. policy is the policy that the resource names.
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
	return openFiles{files: make(map[fileKey]*openFile), maxFileMemory: maxFileMemory}
}

// add adds a part of a profile to the matching open file. from is the index of the first
// sample to add. add stops when the file is full, or when memory has grown by more than
// room. It returns the files that are now finished.
func (o *openFiles) add(d dictionary.Reader, of source, p pprofconv.Part, from, room int, now time.Time) (done []*openFile, a pprofconv.Addition) {
	attributes := pprofconv.Attributes(d, p.Profile)
	key := fileKey{
		unit: cmp.Or(attributes[attr.Unit], of.unit), trigger: attributes[attr.TriggerID],
		typ: pprofconv.TypeOf(d, p.Profile), origin: of.origin, scope: of.scope, moment: p.Moment,
	}
	before := 0
	f := o.files[key]
	if f == nil {
		why := reason.From(func(key string) string { return attributes[key] })
		done = o.finishOlder(key, why.Time)
		f = &openFile{
			fileKey: key,
			why: reason.Reason{
				ID: key.trigger, Unit: key.unit, Policy: cmp.Or(of.policy, why.Policy, "none"),
				Monitor: why.Monitor, Window: why.Window, Value: why.Value, Threshold: why.Threshold,
			},
			triggered: why.Time,
			at:        timeOf(why.Time, p.Profile, now),
			begun:     now,
			pprof:     pprofconv.NewBuilder(key.typ, pprofconv.Options{Origin: of.origin}),
			index:     make(map[string]int),
			resource:  hotunitsextension.ResourceOf(of.resource, notOfFile),
			contained: of.contained,
		}
		for _, text := range []string{
			key.unit, key.trigger, key.origin, key.scope, f.why.Policy, f.why.Monitor, f.why.Window,
			key.typ.Sample, key.typ.Unit, key.typ.Period, key.typ.PeriodUnit,
		} {
			f.identity += len(text)
		}
		f.identity += fileSize
		o.files[key] = f
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

// finishOlder finishes the files of a unit whose trigger is not newer than the trigger of
// a new file. A late profile of an old trigger therefore does not finish the files of
// newer triggers.
func (o *openFiles) finishOlder(than fileKey, triggered time.Time) []*openFile {
	return o.finishAll(func(f *openFile) (finishReason, bool) {
		return finishedByTrigger, f.unit == than.unit && f.trigger != than.trigger && !triggered.Before(f.triggered)
	})
}

// largest returns the open file that uses the most memory. If no file is open, it returns
// nil.
func (o *openFiles) largest() (largest *openFile) {
	for _, f := range o.files {
		if largest == nil || f.size() > largest.size() {
			largest = f
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

// finishAll finishes each file for which the callback returns true. The finished files are
// sorted by the time at which they were begun.
func (o *openFiles) finishAll(which func(*openFile) (finishReason, bool)) []*openFile {
	var done []*openFile
	for _, f := range o.files {
		if reason, ok := which(f); ok {
			done = append(done, o.finish(f, reason))
		}
	}
	slices.SortFunc(done, func(a, b *openFile) int {
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.unit, b.unit),
			strings.Compare(pprofconv.TypeName(a.typ), pprofconv.TypeName(b.typ)), strings.Compare(a.origin, b.origin),
			cmp.Compare(a.moment, b.moment))
	})
	return done
}

// finish removes a file.
func (o *openFiles) finish(f *openFile, reason finishReason) *openFile {
	delete(o.files, f.fileKey)
	o.memory -= f.size()
	f.reason = reason
	return f
}

// timeOf returns the time that appears in the name of a profile's file. It is the time of
// the trigger or, without a trigger, the time of the profile. If neither time is known,
// timeOf returns now.
func timeOf(triggered time.Time, p pprofile.Profile, now time.Time) time.Time {
	switch {
	case !triggered.IsZero():
		return triggered
	case p.Time() != 0:
		return p.Time().AsTime()
	}
	return now
}
