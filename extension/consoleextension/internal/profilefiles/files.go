// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package profilefiles keeps the profiles of openings as gzipped pprof files. Each opening
// has a directory with its files and an index.
package profilefiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

var (
	// ErrNotFound is returned for a profile that does not exist, or no longer exists.
	ErrNotFound = errors.New("not found")
	// ErrDamaged is returned if no file of a profile can be read.
	ErrDamaged = errors.New("profile damaged on disk")
)

// Options configure Files. All fields are required.
type Options struct {
	// Directory is created if it does not exist.
	Directory string
	// MaxBytes is the disk space of the console. The files of an opening take at most an
	// eighth of it.
	MaxBytes int64
	Logger   *zap.Logger
	// Uptime returns the time of a monotonic clock.
	Uptime func() time.Duration
	// Keep is called by Open for each opening that has files. end is the time at which the
	// last profile ends. If kept is false, the files are removed.
	Keep func(description []byte, end time.Time) (of Opening, kept bool)
	// Dropped counts dropped data. n may be 0. Written is called after files have been
	// written. Neither function is called while a lock is held.
	Dropped func(what string, n int64)
	Written func()
}

// Opening is the opening that profiles belong to.
type Opening struct {
	ID               string
	Triggered, Until time.Time
	// Description is stored as JSON with the files. It describes the opening if everything
	// but the files is lost.
	Description any
}

// Samples is a part of a profile that passed a gate.
type Samples struct {
	// Origin and Scope are fields of the ProfileKey.
	Origin, Scope string
	// Executable is the path of the program, or its name.
	Executable string
	Dictionary dictionary.Reader
	Part       pprofconv.Part
	// Attributes are the attributes that pprofconv.Attributes returned.
	Attributes map[string]string
}

// ProfileKey identifies a profile of an opening.
type ProfileKey struct {
	// Type is the name of the type in configurations, such as cpu,
	// off_cpu or alloc_space.
	Type string
	// Origin is the value of hotprofile.origin. It is empty for a sampled profile, and
	// pprof for a profile that the program took itself.
	Origin string
	// Scope is the name of the instrumentation scope. This name identifies the profiler.
	Scope string
	// Moment is the time of a snapshot, such as a goroutine profile, in nanoseconds. It is
	// 0 for other types.
	Moment int64
}

// ProfileInfo describes a kept profile. If the values are known, the samples of the
// profile have the labels hotprofile.trigger.phase, thread.name and thread.id.
type ProfileInfo struct {
	ProfileKey
	Unit       string // unit of the values, such as nanoseconds
	Samples    int64
	Bytes      int64 // on disk
	Start, End time.Time
	Phases     []string // phases with samples: before, both, after, baseline
	// Incomplete is the number of samples whose stack does not reach the entry function of
	// the thread. The last of these samples was taken at LastIncomplete.
	Incomplete     int64
	LastIncomplete time.Time
	// CPUTime is the CPU time of the profiled processes according to the
	// kernel. CPUSampled is the CPU time that the samples represent. Both
	// times are in nanoseconds.
	CPUTime, CPUSampled int64
	// Truncated is the number of samples that were dropped because the opening or the store
	// was full, or because a write failed.
	Truncated int64
	// Damaged is the number of files that could not be read. The samples
	// in these files are lost.
	Damaged int
}

// These are the kinds of data that Options.Dropped counts.
const (
	// DroppedOpeningFull counts samples of an opening that has reached its maximum number
	// of bytes or profiles, or its memory limit.
	DroppedOpeningFull = "samples of openings that are full"
	// DroppedMemory counts samples that arrived faster than the disk could write them.
	DroppedMemory = "samples that did not wait for the disk"
	// DroppedDisk counts samples that could not be written.
	DroppedDisk = "samples that could not be written"
	// DroppedMalformed counts samples that refer to an entry that their
	// dictionary does not contain.
	DroppedMalformed = "malformed samples"
	// DroppedProfiles counts openings whose profiles were deleted to make
	// room for newer profiles.
	DroppedProfiles = "openings whose profiles made room for newer ones"
	// DroppedDamaged counts damaged profile files.
	DroppedDamaged = "damaged profile files"
)

// phases are the values of hotprofile.trigger.phase, in chronological order.
var phases = [...]string{"before", "both", "after", "baseline"}

// limits contains the limits on memory, disk space and the number of profiles.
type limits struct {
	// memory is the maximum estimated size, in bytes, of all samples that are not yet on disk.
	memory int
	// profile is the maximum size of a profile that is read into
	// memory, in estimated bytes.
	profile int
	// openingBytes is the maximum size of the files of one opening.
	openingBytes int64
	// profiles is the maximum number of profiles of one opening. total is the
	// number of profiles of all openings at which the oldest are removed.
	profiles, total int
	// segments is the number of segments at which the segments of a profile are merged.
	segments int
	// flush is the time after which samples in memory are written. idle is the time without
	// new samples after which the files of a profile are merged.
	flush, idle time.Duration
	// wait is the maximum time that a sender waits for the disk. stop is the maximum time
	// that Close waits for the disk.
	wait, stop time.Duration
}

func limitsOf(maxBytes int64) limits {
	return limits{
		memory:       32 << 20,
		profile:      16 << 20,
		openingBytes: min(16<<20, maxBytes/8),
		profiles:     128,
		total:        50_000,
		segments:     16,
		flush:        3 * time.Second,
		idle:         30 * time.Second,
		wait:         time.Second,
		stop:         10 * time.Second,
	}
}

// Files keeps the profiles of openings as files below one directory. Samples are
// merged in memory, and written as a segment after 3 seconds, or earlier if memory is
// short. A crash loses the samples of the last few seconds. The segments of a profile are
// merged when the profile has many segments, and when no more samples arrive. Only one
// goroutine writes files.
type Files struct {
	options Options
	limits  limits

	mu       sync.Mutex // guards the fields up to progress, the openings and their profiles
	openings map[string]*opening
	memory   int   // estimated bytes of all samples that are not yet on disk
	events   int64 // number of these samples
	profiles int
	trash    []string // directories of removed openings
	stalled  bool     // a sender waited in vain, and no file was written since
	pressed  bool     // memory is short, so the next flush writes all samples
	failing  bool     // the last write or merge failed
	closed   bool
	progress chan struct{} // closed after each write and merge, and then replaced

	write   func(path string, content []byte) error // writes a file
	reading *semaphore.Weighted                     // held while a profile is read

	kick    chan struct{}
	done    chan struct{}
	written chan struct{} // closed when the goroutine that writes has ended
}

// opening describes the files of one opening. All files are in one directory.
// The exported fields are stored in that directory as the index. Files that the
// index does not list are leftovers.
type opening struct {
	Version     int             `json:"version"`
	Description json.RawMessage `json:"opening"`
	Profiles    []*profileFile  `json:"profiles"`

	of    Opening // without Description
	dir   string
	last  time.Duration // uptime when the last samples arrived
	dirty bool          // the index must be written
	gone  bool          // the opening was removed
}

// listed reports whether the index lists profiles of the opening.
func (o *opening) listed() bool { return slices.ContainsFunc(o.Profiles, (*profileFile).known) }

// size returns the disk space of the files of an opening, in bytes.
func (o *opening) size() (n int64) {
	if o.listed() {
		n = openingOverhead
	}
	for _, p := range o.Profiles {
		for _, s := range p.Segments {
			n += blocks(s.Bytes)
		}
	}
	return n
}

// profile returns the profile with a key. It returns nil if the
// opening has no such profile.
func (o *opening) profile(key ProfileKey) *profileFile {
	if i := slices.IndexFunc(o.Profiles, func(p *profileFile) bool { return p.ProfileKey == key }); i >= 0 {
		return o.Profiles[i]
	}
	return nil
}

// profileFile is a profile of an opening. The exported fields are stored in the index.
type profileFile struct {
	ProfileInfo `json:"info"`
	Values      dictionary.ProfileType `json:"type"`
	Executable  string                 `json:"executable"`
	Segments    []segment              `json:"segments"`

	pending *pending
	writing int // estimated memory of the samples that are being written, in bytes
}

// pending contains the samples of a profile that are not on disk.
type pending struct {
	*pprofconv.Builder
	o          *opening
	p          *profileFile
	since      time.Duration // uptime of the first samples
	start, end time.Time
	phases     map[string]bool
}

// memory returns the estimated memory that is needed to read the profile, in bytes.
func (p *profileFile) memory() (n int) {
	for _, s := range p.Segments {
		n += s.Memory
	}
	if p.pending != nil {
		n += p.pending.Size()
	}
	return n + p.writing
}

// Open finds the files of the directory, and starts the goroutine that writes to the disk.
// Close ends this goroutine.
func Open(o Options) (*Files, error) {
	f := newFiles(o, limitsOf(o.MaxBytes))
	if err := f.load(); err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

func newFiles(o Options, limits limits) *Files {
	return &Files{
		options: o, limits: limits,
		write:    func(path string, content []byte) error { return atomicfile.Write(path, content, nil) },
		openings: make(map[string]*opening),
		progress: make(chan struct{}),
		reading:  semaphore.NewWeighted(1),
		kick:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		written:  make(chan struct{}),
	}
}

// Close writes the samples that are not yet on disk. After 10 seconds, it gives up,
// and the remaining samples are lost. Samples that are added after Close was called
// are dropped. Close is called once.
func (f *Files) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	close(f.done)
	select {
	case <-f.written:
	case <-time.After(f.limits.stop):
		f.mu.Lock()
		lost := f.events
		f.mu.Unlock()
		f.options.Dropped(DroppedDisk, lost)
		f.options.Logger.Error("disk does not answer, console's last profiles are lost", zap.String("directory", f.options.Directory), zap.Int64("samples", lost))
	}
}

// run writes and merges files when they are due, until Close is called.
func (f *Files) run() {
	defer close(f.written)
	ticker := time.NewTicker(min(time.Second, f.limits.flush))
	defer ticker.Stop()
	for {
		select {
		case <-f.done:
			f.flush(true)
			return
		case <-f.kick:
		case <-ticker.C:
		}
		f.flush(false)
		f.merge()
	}
}

// hurry makes the writing goroutine write and merge due files without waiting for the
// next tick.
func (f *Files) hurry() { token.Put(f.kick) }

// Add adds samples to the profile of an opening. If samples arrive faster than the disk
// writes them, Add waits for the disk for at most one second. Samples that do not fit are
// counted by Options.Dropped and in ProfileInfo.Truncated.
func (f *Files) Add(to Opening, in Samples) {
	f.mu.Lock()
	from, malformed, drop := f.addAll(to, in)
	lost := int64(0)
	if drop != "" {
		lost = in.Part.Events(from)
		if o := f.openings[to.ID]; o != nil {
			if p := o.profile(keyOf(o, in)); p != nil {
				p.Truncated += lost
				o.dirty = true
			}
		}
	}
	f.mu.Unlock()
	f.options.Dropped(drop, lost)
	f.options.Dropped(DroppedMalformed, int64(malformed))
}

// addAll adds samples, and waits while memory is short. If not all samples were added,
// from is the index of the first remaining sample, and drop is the reason. The caller
// holds the lock. addAll releases the lock while it waits.
func (f *Files) addAll(to Opening, in Samples) (from, malformed int, drop string) {
	var deadline *time.Timer
	for from < in.Part.Len() && drop == "" {
		a, why := f.addSome(to, in, from)
		from = max(from, a.Next)
		malformed += a.Malformed
		if why != DroppedMemory {
			drop = why
			continue
		}
		// Writing a file makes room in memory.
		f.hurry()
		if f.stalled || f.closed {
			drop = why
			continue
		}
		if deadline == nil {
			deadline = time.NewTimer(f.limits.wait)
			defer deadline.Stop()
		}
		progress := f.progress
		f.mu.Unlock()
		select {
		case <-progress:
			f.mu.Lock()
		case <-deadline.C:
			f.mu.Lock()
			f.stalled = true
		}
	}
	return from, malformed, drop
}

// chunk is the maximum number of bytes that are added at once. It is limited because the
// lock is held while samples are added.
const chunk = 1 << 20

// addSome adds samples, beginning with the sample at index from. If no sample was added,
// drop is the reason. The caller holds the lock.
func (f *Files) addSome(to Opening, in Samples, from int) (a pprofconv.Addition, drop string) {
	if f.closed {
		return a, DroppedMemory
	}
	// Old profiles are removed only when files are written, so the limit may be exceeded.
	room := f.limits.memory - f.memory
	if room <= 0 || f.openings[to.ID] == nil && f.profiles >= 2*f.limits.total {
		f.pressed = true
		return a, DroppedMemory
	}
	o := f.opening(to)
	now := f.options.Uptime()
	o.last = now
	p := f.profileOf(o, in)
	if p == nil || f.full(o, p) {
		return a, DroppedOpeningFull
	}
	left := f.limits.profile - p.memory()
	if left <= 0 {
		f.pressed = true
		return a, DroppedMemory
	}
	room = min(room, left, chunk)
	w := p.pending
	if w == nil {
		w = &pending{
			Builder: pprofconv.NewBuilder(p.Values, pprofconv.Options{Origin: p.Origin, Labels: []string{attr.TriggerPhase}}),
			o:       o, p: p, since: now, phases: map[string]bool{},
		}
		p.pending = w
		f.memory += w.Size()
	}
	size, events := w.Size(), w.Events()
	a = w.Add(in.Dictionary, in.Part, in.Attributes, from, room)
	f.memory += w.Size() - size
	f.events += int64(w.Events() - events)
	if start, end := in.Part.Span(); start > 0 {
		w.start, w.end = union(w.start, w.end, time.Unix(0, start), time.Unix(0, end))
	}
	if phase := in.Attributes[attr.TriggerPhase]; slices.Contains(phases[:], phase) {
		w.phases[phase] = true
	}
	if f.memory > f.limits.memory/2 {
		f.pressed = true
		f.hurry()
	}
	return a, ""
}

// full reports whether a profile accepts no more samples. A profile or an opening is full at
// three quarters of a limit if a merge did not free more. The first segment of a profile
// contains its merged samples.
func (f *Files) full(o *opening, p *profileFile) bool {
	merged := int64(0)
	for _, p := range o.Profiles {
		if len(p.Segments) > 0 {
			merged += blocks(p.Segments[0].Bytes)
		}
	}
	return o.size() >= f.limits.openingBytes || merged > f.limits.openingBytes/4*3 ||
		len(p.Segments) > 0 && p.Segments[0].Memory > f.limits.profile/4*3
}

// union returns the time span that covers two time spans. A zero time means that a
// start or an end is unknown.
func union(start, end, start2, end2 time.Time) (time.Time, time.Time) {
	if start.IsZero() || !start2.IsZero() && start2.Before(start) {
		start = start2
	}
	if end2.After(end) {
		end = end2
	}
	return start, end
}

// opening finds or adds an opening. The caller holds the lock.
func (f *Files) opening(of Opening) *opening {
	o := f.openings[of.ID]
	if o == nil {
		o = &opening{Version: indexVersion, dir: f.dirOf(of.ID)}
		f.openings[of.ID] = o
	}
	if o.Description == nil || of.Until.After(o.of.Until) {
		o.Description, _ = json.Marshal(of.Description) // cannot fail for texts, times and numbers
		o.of = Opening{ID: of.ID, Triggered: of.Triggered, Until: of.Until}
		o.dirty = true
	}
	return o
}

// cut truncates a string of a ProfileKey or of a type to at most 200 bytes.
func cut(s string) string { return strings.ToValidUTF8(truncate.Cut(s, 200), "\uFFFD") }

// typeOf returns the profile type of samples.
func typeOf(in Samples) dictionary.ProfileType {
	t := in.Dictionary.ProfileType(in.Part.Profile)
	return dictionary.ProfileType{
		Sample: cut(t.Sample), Unit: cut(t.Unit),
		Period: cut(t.Period), PeriodUnit: cut(t.PeriodUnit),
	}
}

// keyOf returns the key of the profile that samples belong to. Values of different types
// cannot be added up. If a second type has the same name, its key contains a longer name.
func keyOf(o *opening, in Samples) ProfileKey {
	t := typeOf(in)
	key := ProfileKey{
		Type:   cut(pprofconv.TypeName(t)),
		Origin: cut(in.Origin),
		Scope:  cut(in.Scope),
		Moment: in.Part.Moment,
	}
	if p := o.profile(key); p != nil && p.Values != t {
		key.Type = cut(fmt.Sprintf("%s (%s %s, %s %s)", pprofconv.TypeName(t), t.Sample, t.Unit, t.Period, t.PeriodUnit))
	}
	return key
}

// profileOf finds or adds a profile. It returns nil if there is no room for another
// profile. The caller holds the lock.
func (f *Files) profileOf(o *opening, in Samples) *profileFile {
	key, t := keyOf(o, in), typeOf(in)
	p := o.profile(key)
	if p == nil {
		if len(o.Profiles) >= f.limits.profiles {
			return nil
		}
		p = &profileFile{
			ProfileInfo: ProfileInfo{ProfileKey: key, Unit: unitOf(t)},
			Values:      t,
			Executable:  pprofconv.Cut(in.Executable),
		}
		o.Profiles = append(o.Profiles, p)
		slices.SortFunc(o.Profiles, func(a, b *profileFile) int { return CompareKeys(a.ProfileKey, b.ProfileKey) })
		f.profiles++
	}
	if p.Values != t { // two long names with the same beginning
		return nil
	}
	return p
}

// unitOf returns the unit of the last value of a profile, because pages show the last
// value.
func unitOf(t dictionary.ProfileType) string {
	if pprofconv.TypeName(t) != t.Sample {
		return t.PeriodUnit
	}
	return t.Unit
}

// Infos describes the profiles of an opening that have files or lost samples.
func (f *Files) Infos(id string) []ProfileInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.openings[id]
	if o == nil {
		return nil
	}
	var out []ProfileInfo
	for _, p := range o.Profiles {
		if p.known() {
			info := p.ProfileInfo
			for _, s := range p.Segments {
				info.Bytes += s.Bytes
			}
			out = append(out, info)
		}
	}
	return out
}

// known reports whether a profile has files, or lost samples.
func (p *profileFile) known() bool { return len(p.Segments) > 0 || p.Damaged > 0 || p.Truncated > 0 }

// CompareKeys compares two keys, for sorting.
func CompareKeys(a, b ProfileKey) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Origin, b.Origin),
		strings.Compare(a.Scope, b.Scope), cmp.Compare(a.Moment, b.Moment))
}

// Size returns the disk space of all files, in bytes.
func (f *Files) Size() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.openings {
		n += o.size()
	}
	return n
}

// TooMany reports whether there are too many profiles.
func (f *Files) TooMany() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.profiles > f.limits.total
}

// flush writes the samples that have been in memory for long enough. If all is true, it
// writes all samples. Then it writes the index of each opening that changed.
func (f *Files) flush(all bool) {
	f.mu.Lock()
	now := f.options.Uptime()
	all = all || f.pressed
	f.pressed = false
	var work []*pending
	for _, o := range f.openings {
		for _, p := range o.Profiles {
			if p.pending == nil || !all && now-p.pending.since < f.limits.flush {
				continue
			}
			work = append(work, p.pending)
			p.writing = p.pending.Size()
			p.pending = nil
		}
	}
	f.mu.Unlock()
	f.emptyTrash() // before the files of an opening that was removed and added again
	for _, w := range work {
		f.writeSamples(w)
	}
	f.mu.Lock()
	var dirty []*opening
	for _, o := range f.openings {
		if o.dirty && o.listed() {
			dirty = append(dirty, o)
		}
	}
	f.mu.Unlock()
	for _, o := range dirty {
		f.writeIndex(o)
	}
	if len(work) > 0 {
		f.options.Written()
	}
}

// writeSamples writes samples as a segment.
func (f *Files) writeSamples(w *pending) {
	size, events := w.Size(), w.Events()
	var s segment
	var err error
	if events > 0 {
		s, err = f.writeSegment(w.o, w.p, w.Finish(w.p.Executable), true)
	}
	f.mu.Lock()
	f.memory -= size
	f.events -= int64(events)
	w.p.writing = 0
	switch {
	case events == 0, w.o.gone:
	case err != nil:
		w.p.Truncated += int64(events)
	default:
		w.p.Segments = append(w.p.Segments, s)
		w.p.Samples += int64(events)
		w.p.CPUTime += w.CPUTime
		w.p.CPUSampled += w.CPUSampled
		w.p.Incomplete += int64(w.Incomplete)
		if at := time.Unix(0, w.LastIncomplete); w.Incomplete > 0 && at.After(w.p.LastIncomplete) {
			w.p.LastIncomplete = at
		}
		w.p.Start, w.p.End = union(w.p.Start, w.p.End, w.start, w.end)
		// A new list, because readers keep the old list.
		w.p.Phases = slices.DeleteFunc(slices.Clone(phases[:]), func(phase string) bool {
			return !w.phases[phase] && !slices.Contains(w.p.Phases, phase)
		})
	}
	w.o.dirty = true
	f.stalled = false
	f.progressed()
	failing := f.failing
	f.failing = err != nil
	f.mu.Unlock()
	if err != nil {
		f.options.Dropped(DroppedDisk, int64(events))
		if !failing {
			f.options.Logger.Error("console's profiles not written, their samples are lost", zap.Int("samples", events), zap.Error(err))
		}
	} else if failing {
		f.options.Logger.Info("console's profiles are written again", zap.String("directory", f.options.Directory))
	}
}

// progressed wakes the senders that wait for a write. The caller holds the lock.
func (f *Files) progressed() {
	close(f.progress)
	f.progress = make(chan struct{})
}

// removeSegments removes segments from the index. The caller holds the lock.
func (p *profileFile) removeSegments(gone ...segment) {
	p.Segments = slices.DeleteFunc(p.Segments, func(s segment) bool { return slices.Contains(gone, s) })
}

// RemoveOldest removes the profiles of the opening whose samples ended first, but never
// the opening with the ID except. It reports whether it found an opening to remove.
func (f *Files) RemoveOldest(except string) bool {
	f.mu.Lock()
	var oldest *opening
	for id, o := range f.openings {
		if id == except {
			continue
		}
		if oldest == nil || cmp.Or(o.end().Compare(oldest.end()), strings.Compare(o.dir, oldest.dir)) < 0 {
			oldest = o
		}
	}
	f.mu.Unlock()
	if oldest == nil {
		return false
	}
	f.Remove(oldest.of.ID)
	f.options.Dropped(DroppedProfiles, 1)
	return true
}

// end returns the time at which the last profile of an opening ends. It covers
// samples in memory and on disk.
func (o *opening) end() (end time.Time) {
	end = o.of.Triggered
	for _, p := range o.Profiles {
		if p.End.After(end) {
			end = p.End
		}
		if p.pending != nil && p.pending.end.After(end) {
			end = p.pending.end
		}
	}
	return end
}

// Remove forgets the profiles of an opening. The goroutine that writes
// deletes the files.
func (f *Files) Remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.openings[id]
	if o == nil {
		return
	}
	delete(f.openings, id)
	o.gone = true
	f.trash = append(f.trash, o.dir)
	f.profiles -= len(o.Profiles)
	for _, p := range o.Profiles {
		if p.pending != nil {
			f.memory -= p.pending.Size()
			f.events -= int64(p.pending.Events())
			p.pending = nil
		}
	}
	f.hurry()
}
