// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// These constants bound the concurrent requests. Further requests wait for at most
// maxWait and are then refused.
const (
	maxRequests = 1024
	maxWait     = time.Second
)

// maxResources is the maximum number of remembered resources. At this number, the least
// recently used resource is forgotten.
const maxResources = 1024

// offClock is the maximum difference between a sample's time and this host's clock that
// is not logged. Backends refuse samples that are older than an hour. offClock is also
// the maximum time between two consecutive samples in one profile.
const offClock = time.Hour

// Intake turns buffers into samples.
type Intake struct {
	*sampler.Shared
	sink       sampler.SentSink
	identityOf func(pid int) (processes.Identity, error) // the process at the other end of a Unix socket
	slots      chan struct{}
	maxWait    time.Duration
	memory     *memory
	now        func() time.Time

	mu        sync.Mutex
	decoder   *nativeformat.Decoder
	stacks    *stacks
	resources *simplelru.LRU[sender, *resource]
	full      episode
	stats     Stats
}

// sender is the key of a resource.
type sender struct {
	process processes.Identity // empty for a sender over TCP
	header  string
}

// resource is the resource of a sender, together with the sender's sample times.
type resource struct {
	*samples.Resource
	last int64 // time of the last sample
	// selected is the interval of selective sampling in nanoseconds. It is 0 before the
	// first buffer of selective samples.
	selected int64
	warned   bool
}

// Stats are counters since the Intake was created.
type Stats struct {
	// Lost counts the lost events by kind. An allocation counts as two events, one for
	// objects and one for bytes.
	Lost [nativeformat.SelectedThreadSamples + 1]Events
	// Names, Stacks, Resources and Attributes count how often each limit was reached. At a
	// limit, the intake forgets all names, all stacks or one resource, or it truncates or
	// drops an attribute.
	Names, Stacks, Resources, Attributes uint64
}

// Events counts events that did not reach the sink.
type Events struct {
	// BufferFull counts events that did not fit into the sink. Unreadable counts events
	// without frames, with an impossible time, or in an unreadable or cut part of a buffer.
	// LeftOut counts events of the profiler's own thread.
	BufferFull, Unreadable, LeftOut uint64
}

// New returns an intake.
func New(s *sampler.Shared, identify func(pid int) (processes.Identity, error)) *Intake {
	decoder := nativeformat.NewDecoder(0)
	in := &Intake{
		Shared: s, sink: s.Buffer, identityOf: identify, now: time.Now,
		slots: make(chan struct{}, maxRequests), maxWait: maxWait,
		memory:  &memory{left: semaphore.NewWeighted(maxBodies)},
		decoder: decoder,
		stacks:  newStacks(decoder, maxStackBytes),
	}
	in.resources, _ = simplelru.NewLRU[sender, *resource](maxResources, nil) // fails only for a size below 1
	return in
}

// Stats returns the counters.
func (in *Intake) Stats() Stats {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.stats
	s.Names, s.Stacks = in.decoder.Forgotten(), in.stacks.resets
	return s
}

// Result is the outcome of the samples of one buffer.
type Result struct {
	// Samples counts samples that were added to the sink.
	Samples int `json:"samples"`
	// Incomplete counts samples that were cut off at the end of the buffer. WithoutFrames
	// counts samples without a stack. ExportThread counts samples of the profiler's own
	// thread. WrongTime counts samples with an impossible time. NoRoom counts samples for
	// which both batches were full.
	Incomplete    int `json:"incomplete"`
	WithoutFrames int `json:"without_frames"`
	ExportThread  int `json:"export_thread"`
	WrongTime     int `json:"wrong_time,omitempty"`
	NoRoom        int `json:"no_room,omitempty"`
}

// add decodes a buffer and adds its samples.
func (in *Intake) add(format nativeformat.Format, interval time.Duration, from sender, body []byte) (Result, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	b := &buffer{in: in, kind: format.Kind, period: interval.Nanoseconds(), from: in.resourceOf(from), now: in.now().UnixNano()}
	if format.Kind == nativeformat.SelectedThreadSamples {
		b.from.selected = b.period
	}
	summary, err := in.decoder.Decode(format, body, b.sample)
	b.Incomplete = summary.Incomplete

	events, each := &in.stats.Lost[format.Kind], 1
	if format.Kind == nativeformat.AllocationSamples {
		each = 2
	}
	unreadable := b.Incomplete + b.WithoutFrames + b.WrongTime
	if err != nil {
		unreadable++
	}
	events.Unreadable += uint64(unreadable * each)
	events.LeftOut += uint64(b.ExportThread * each)
	events.BufferFull += uint64(b.lost)
	if b.NoRoom > 0 {
		in.full.lose(in.Logger, format.Kind, b.now, b.NoRoom)
	} else if b.Samples > 0 {
		in.full.end(in.Logger, b.now)
	}
	return b.Result, err
}

// resourceOf returns the resource of a sender. It returns the same resource each time,
// because the samples of one resource form one profile.
func (in *Intake) resourceOf(from sender) *resource {
	if r, ok := in.resources.Get(from); ok {
		return r
	}
	var who *processes.Identity
	if from.process != (processes.Identity{}) {
		who = &from.process
	}
	made, bounded := resourceOf(from.header, who, host{in.HostInfo.Name, in.HostInfo.ID})
	in.stats.Attributes += uint64(bounded)
	r := &resource{Resource: made}
	if in.resources.Add(from, r) {
		in.stats.Resources++
	}
	return r
}

// buffer is a buffer that is being decoded.
type buffer struct {
	Result
	in     *Intake
	kind   nativeformat.Kind
	period int64
	from   *resource
	now    int64
	begun  bool
	lost   int // number of lost events
}

// sample adds one sample.
func (b *buffer) sample(s *nativeformat.Sample) {
	if !b.begun {
		b.begun = true
		b.in.stacks.begin()
	}
	if s.Thread == nativeformat.ExportThread {
		b.ExportThread++
		return
	}
	if len(s.Frames) == 0 {
		b.WithoutFrames++
		return
	}
	// The time must be above 0, because 0 means no time in OTLP. The maximum leaves room
	// for a window around the time.
	const latest = 1<<62 - 1
	if s.UnixMilli <= 0 || s.UnixMilli > latest/int64(time.Millisecond) {
		b.WrongTime++
		return
	}
	at := s.UnixMilli * int64(time.Millisecond)
	b.from.keepTime(at, b.now, b.in.Logger)

	k := samples.Key{
		Resource: b.from.Resource,
		Stack:    b.in.stacks.of(s.Frames),
		Link:     samples.Link{TraceID: s.TraceID, SpanID: s.SpanID},
		Period:   b.period,
	}
	if b.in.ThreadName {
		k.Thread.Name = b.in.decoder.Text(s.Thread)
	}
	var lost int
	switch b.kind {
	case nativeformat.ThreadSamples:
		k.Type, k.Selected = samples.DotnetThreads, s.Selected
		// The profiler takes no selective samples while it samples all threads. This sample
		// of a selected thread therefore replaces one selective sample, and gets the period
		// of a selective sample. Other selective samples cover the rest of the interval.
		if s.Selected && b.from.selected > 0 {
			k.Period = min(k.Period, b.from.selected)
		}
		lost = b.addEvent(k, at, k.Period)
	case nativeformat.SelectedThreadSamples:
		k.Type, k.Selected = samples.DotnetSelected, true
		lost = b.addEvent(k, at, k.Period)
	case nativeformat.AllocationSamples:
		k.AllocType, k.Period = b.in.decoder.Text(s.Type), 1
		k.Type = samples.DotnetAllocObjects
		lost = b.addEvent(k, at, 1)
		k.Type = samples.DotnetAllocSpace
		lost += b.addEvent(k, at, int64(min(s.Bytes, 1<<63-1)))
	}
	b.lost += lost
	if lost > 0 {
		b.NoRoom++
	} else {
		b.Samples++
	}
}

// addEvent adds an event. It returns 1 if the event was lost, and 0 otherwise.
func (b *buffer) addEvent(k samples.Key, at, value int64) (lost int) {
	if b.in.sink.AddSent(k, at, value) {
		return 0
	}
	return 1
}

// keepTime records the time of a sample. If a sender's clock was set, or if its buffers
// are old, the following samples go into a new profile, so that no profile spans years.
func (r *resource) keepTime(at, now int64, log *zap.Logger) {
	if r.last != 0 && time.Duration(at-r.last).Abs() > offClock {
		again := *r.Resource
		r.Resource = &again
	}
	r.last = at
	off := time.Duration(at - now).Abs()
	if off <= offClock {
		r.warned = false
		return
	}
	if !r.warned {
		r.warned = true
		log.Warn("time of a .NET service's samples is far from this host's; backends refuse samples older than an hour",
			zap.Time("sample", time.Unix(0, at).UTC()), zap.Duration("off", off), zap.String("service", r.Text(attr.ServiceName)))
	}
}

// episode is a period in which samples do not fit into the sink. Its start and its end are
// each logged once.
type episode struct {
	begun   int64 // 0 without an episode
	samples int
}

func (e *episode) lose(log *zap.Logger, kind nativeformat.Kind, now int64, samples int) {
	if e.begun == 0 {
		e.begun = now
		message := sampler.MsgThreadsFull
		if kind == nativeformat.AllocationSamples {
			message = sampler.MsgAllocationsFull
		}
		log.Warn(message, zap.Stringer("of", kind))
	}
	e.samples += samples
}

func (e *episode) end(log *zap.Logger, now int64) {
	if e.begun == 0 {
		return
	}
	log.Info("buffers have room for samples of .NET services again",
		zap.Duration("after", time.Duration(now-e.begun)), zap.Int("samples_lost", e.samples))
	*e = episode{}
}
