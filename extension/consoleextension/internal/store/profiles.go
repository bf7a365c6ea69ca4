// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/internal/token"
)

// Samples is a part of a profile that passed a gate.
type Samples struct {
	// Opening is the opening that the attributes of the profile describe.
	Opening Opening
	// Origin and Scope are fields of the ProfileKey.
	Origin, Scope string
	// Executable is the path of the program, or its name.
	Executable string
	Dictionary dictionary.Reader
	Part       pprofconv.Part
	// Attributes are the attributes that pprofconv.Attributes returned.
	Attributes map[string]string
}

// These are the keys of Usage.Dropped that concern profiles.
const (
	// DroppedNoOpening counts samples without the attributes of a gate.
	DroppedNoOpening = "samples that passed no gate"
	// DroppedNotKept counts samples of an opening that the store does not keep.
	// Either there is no room for the unit of the opening, or an opening of
	// another unit has the same ID.
	DroppedNotKept = "samples of openings that are not kept"
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

// profileDirectory is the directory that holds one subdirectory per opening.
const profileDirectory = "profiles"

// openProfiles finds the profile files of the directory. Open calls openProfiles once,
// when the database is open and the openings are loaded.
func (s *Store) openProfiles() error {
	f := s.profiles
	if err := f.load(s.keepProfiles); err != nil {
		return err
	}
	f.put = s.PutOpening
	f.room = func() {
		if s.full() {
			s.poke()
		}
	}
	f.start()
	return nil
}

// keepProfiles reports whether the store keeps profiles that it found on disk for an
// opening. If the database does not contain the opening, keepProfiles adds the opening
// unless the opening is old. An old opening is missing if the collector was killed after it
// deleted the record and before it deleted the profiles.
func (s *Store) keepProfiles(of Opening, end time.Time) bool {
	return s.openings[of.ID] != nil || end.After(s.options.Now().Add(-s.options.MaxAge)) && s.PutOpening(of)
}

// AddSamples adds samples to the profile of an opening. If samples arrive faster than
// the disk writes them, AddSamples waits for the disk for at most one second. Samples
// that do not fit are counted in Usage.Dropped and in ProfileInfo.Truncated. Samples
// that passed no gate are also counted, and a warning is logged once.
func (s *Store) AddSamples(in Samples) { s.profiles.add(in) }

// validID reports whether id may be the ID of an opening. IDs of openings are part of
// URLs.
func validID(id string) bool {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// profileBytes returns the disk space of all profile files, in bytes.
func (s *Store) profileBytes() int64 { return s.profiles.size() }

// Profile implements Reader.
func (s *Store) Profile(ctx context.Context, opening string, of ProfileKey) (*profile.Profile, error) {
	return s.profiles.read(ctx, opening, of)
}

// phases are the values of hotprofile.trigger.phase, in chronological order.
var phases = [...]string{"before", "both", "after", "baseline"}

// profileLimits contains the limits on memory, disk space and the number of profiles.
type profileLimits struct {
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

func limitsOfProfiles(maxBytes int64) profileLimits {
	return profileLimits{
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

// profileFiles keeps the profiles of openings as files below one directory. Samples are
// merged in memory, and written as a segment after 3 seconds, or earlier if memory is
// short. A crash loses the samples of the last few seconds. The segments of a profile are
// merged when the profile has many segments, and when no more samples arrive. Only one
// goroutine writes files.
type profileFiles struct {
	dir    string
	limits profileLimits
	log    *zap.Logger
	uptime func() time.Duration
	// put adds an opening to the store or updates it. It returns false if the store does
	// not keep the opening. dropped counts dropped data. room is called after files have
	// been written. None of these functions is called while a lock is held.
	put     func(Opening) bool
	dropped func(what string, n int64)
	room    func()

	mu       sync.Mutex
	openings map[string]*openingFiles
	memory   int // estimated bytes of all samples that are not yet on disk
	profiles int
	trash    []string // directories of removed openings
	stalled  bool     // a sender waited in vain, and no file was written since
	pressed  bool     // memory is short, so the next flush writes all samples
	failing  bool     // the last write or merge failed
	closed   bool
	progress chan struct{} // closed after each write and merge, and then replaced

	write   func(path string, content []byte) error // writes a file
	reading *semaphore.Weighted                     // held while a profile is read
	noGate  sync.Once

	kick    chan struct{}
	done    chan struct{}
	written chan struct{} // closed when the goroutine that writes has ended
}

// openingFiles describes the files of one opening. All files are in one directory.
// The exported fields are stored in that directory as the index. Files that the
// index does not list are leftovers.
type openingFiles struct {
	Version  int            `json:"version"`
	Opening  Opening        `json:"opening"` // without Profiles
	Profiles []*profileFile `json:"profiles"`

	dir   string
	last  time.Duration // uptime when the last samples arrived
	kept  bool          // the opening has a directory
	dirty bool          // the index must be written
	gone  bool          // the opening was removed
}

// size returns the disk space of the files of an opening, in bytes.
func (o *openingFiles) size() (n int64) {
	if o.kept {
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
func (o *openingFiles) profile(key ProfileKey) *profileFile {
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
	// writing is the estimated memory of the samples that are being written, in bytes.
	// writingEvents is the number of these samples.
	writing       int
	writingEvents int64
}

// pending contains the samples of a profile that are not on disk.
type pending struct {
	*pprofconv.Builder
	o          *openingFiles
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

func newProfileFiles(dir string, limits profileLimits, log *zap.Logger, uptime func() time.Duration) *profileFiles {
	return &profileFiles{
		dir: dir, limits: limits, log: log, uptime: uptime,
		put:      func(Opening) bool { return true },
		dropped:  func(string, int64) {},
		room:     func() {},
		write:    func(path string, content []byte) error { return atomicfile.Write(path, content, nil) },
		openings: make(map[string]*openingFiles),
		progress: make(chan struct{}),
		reading:  semaphore.NewWeighted(1),
		kick:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		written:  make(chan struct{}),
	}
}

// start starts the goroutine that writes to the disk. stop ends this goroutine.
func (f *profileFiles) start() { go f.run() }

// stop writes the samples that are not yet on disk. After 10 seconds, it gives up,
// and the remaining samples are lost. Samples that are added after stop was called
// are dropped. stop is called once.
func (f *profileFiles) stop() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	close(f.done)
	select {
	case <-f.written:
	case <-time.After(f.limits.stop):
		lost := f.unwritten()
		f.dropped(DroppedDisk, lost)
		f.log.Error("disk does not answer, console's last profiles are lost", zap.String("directory", f.dir), zap.Int64("samples", lost))
	}
}

// unwritten counts the samples that are only in memory.
func (f *profileFiles) unwritten() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.openings {
		for _, p := range o.Profiles {
			n += p.writingEvents
			if p.pending != nil {
				n += int64(p.pending.Events())
			}
		}
	}
	return n
}

// run writes and merges files when they are due, until stop is called.
func (f *profileFiles) run() {
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
func (f *profileFiles) hurry() { token.Put(f.kick) }

// add adds samples. While memory is short, add waits for the disk for at most one second.
// Samples that still have no room are dropped and counted.
func (f *profileFiles) add(in Samples) {
	if !validID(in.Opening.ID) || in.Opening.Unit.Name == "" {
		f.dropped(DroppedNoOpening, in.Part.Events(0))
		f.noGate.Do(func() {
			f.log.Warn("console drops profiles that passed no gate: add cpu_trigger to the pipeline that exports profiles to console, or to that of the sender",
				zap.String("service", in.Opening.Unit.Resource[attr.ServiceName]), zap.String("trigger_id", cutText(in.Opening.ID, 64)))
		})
		return
	}
	if f.isNews(in.Opening) && !f.put(in.Opening) {
		f.dropped(DroppedNotKept, in.Part.Events(0))
		return
	}
	f.mu.Lock()
	from, malformed, drop := f.addAll(in)
	lost := int64(0)
	if drop != "" {
		lost = in.Part.Events(from)
		if o := f.openings[in.Opening.ID]; o != nil {
			if p := o.profile(keyOf(o, in)); p != nil {
				p.Truncated += lost
				o.dirty = true
			}
		}
	}
	f.mu.Unlock()
	if lost > 0 {
		f.dropped(drop, lost)
	}
	if malformed > 0 {
		f.dropped(DroppedMalformed, int64(malformed))
	}
}

// addAll adds samples, and waits while memory is short. If not all samples were added,
// from is the index of the first remaining sample, and drop is the reason. The caller
// holds the lock. addAll releases the lock while it waits.
func (f *profileFiles) addAll(in Samples) (from, malformed int, drop string) {
	var deadline *time.Timer
	for from < in.Part.Len() && drop == "" {
		a, why := f.addSome(in, from)
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
func (f *profileFiles) addSome(in Samples, from int) (a pprofconv.Addition, drop string) {
	if f.closed {
		return a, DroppedMemory
	}
	// Old profiles are removed only when files are written, so the limit may be exceeded.
	room := f.limits.memory - f.memory
	if room <= 0 || f.openings[in.Opening.ID] == nil && f.profiles >= 2*f.limits.total {
		f.pressed = true
		return a, DroppedMemory
	}
	o := f.opening(in.Opening)
	now := f.uptime()
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
	w, before := p.pending, 0
	if w == nil {
		w = &pending{
			Builder: pprofconv.NewBuilder(p.Values, pprofconv.Options{Origin: p.Origin, Labels: []string{attr.TriggerPhase}}),
			o:       o, p: p, since: now, phases: map[string]bool{},
		}
		p.pending = w
	} else {
		before = w.Size()
	}
	a = w.Add(in.Dictionary, in.Part, in.Attributes, from, room)
	f.memory += w.Size() - before
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
func (f *profileFiles) full(o *openingFiles, p *profileFile) bool {
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

// isNews reports whether an opening contains facts that the index does not contain.
func (f *profileFiles) isNews(of Opening) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.openings[of.ID]
	return o == nil || o.Opening.Unit.Host != of.Unit.Host || o.Opening.Unit.Name != of.Unit.Name || of.Until.After(o.Opening.Until)
}

// opening finds or adds an opening. The caller holds the lock.
func (f *profileFiles) opening(of Opening) *openingFiles {
	o := f.openings[of.ID]
	if o == nil {
		of.Unit.Resource, _, _ = boundAttributes(of.Unit.Resource, maxAttributes, maxResource)
		o = &openingFiles{Version: indexVersion, Opening: of, dir: f.dirOf(of.ID), dirty: true}
		f.openings[of.ID] = o
	}
	if of.Until.After(o.Opening.Until) {
		o.Opening.Until = of.Until
		o.dirty = true
	}
	return o
}

// maxKeyText is the maximum length of each string in a ProfileKey, in bytes.
const maxKeyText = 200

// typeOf returns the profile type of samples.
func typeOf(in Samples) dictionary.ProfileType {
	t := in.Dictionary.ProfileType(in.Part.Profile)
	return dictionary.ProfileType{
		Sample: cutText(t.Sample, maxKeyText), Unit: cutText(t.Unit, maxKeyText),
		Period: cutText(t.Period, maxKeyText), PeriodUnit: cutText(t.PeriodUnit, maxKeyText),
	}
}

// keyOf returns the key of the profile that samples belong to. Values of different types
// cannot be added up. If a second type has the same name, its key contains a longer name.
func keyOf(o *openingFiles, in Samples) ProfileKey {
	t := typeOf(in)
	key := ProfileKey{
		Type:   cutText(pprofconv.TypeName(t), maxKeyText),
		Origin: cutText(in.Origin, maxKeyText),
		Scope:  cutText(in.Scope, maxKeyText),
		Moment: in.Part.Moment,
	}
	if p := o.profile(key); p != nil && p.Values != t {
		key.Type = cutText(fmt.Sprintf("%s (%s %s, %s %s)", pprofconv.TypeName(t), t.Sample, t.Unit, t.Period, t.PeriodUnit), maxKeyText)
	}
	return key
}

// profileOf finds or adds a profile. It returns nil if there is no room for another
// profile. The caller holds the lock.
func (f *profileFiles) profileOf(o *openingFiles, in Samples) *profileFile {
	key, t := keyOf(o, in), typeOf(in)
	p := o.profile(key)
	if p == nil {
		if len(o.Profiles) >= f.limits.profiles {
			return nil
		}
		p = &profileFile{
			ProfileInfo: ProfileInfo{ProfileKey: key, Unit: unitOf(t)},
			Values:      t,
			Executable:  cutText(in.Executable, maxText),
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

// infos describes the profiles of an opening that have files or lost samples.
func (f *profileFiles) infos(id string) []ProfileInfo {
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

// size returns the disk space of all files, in bytes.
func (f *profileFiles) size() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.openings {
		n += o.size()
	}
	return n
}

// tooMany reports whether there are too many profiles.
func (f *profileFiles) tooMany() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.profiles > f.limits.total
}

// flush writes the samples that have been in memory for long enough. If all is true, it
// writes all samples. Then it writes the index of each opening that changed.
func (f *profileFiles) flush(all bool) {
	f.mu.Lock()
	now := f.uptime()
	all = all || f.pressed
	f.pressed = false
	var work []*pending
	for _, o := range f.openings {
		for _, p := range o.Profiles {
			if p.pending == nil || !all && now-p.pending.since < f.limits.flush {
				continue
			}
			work = append(work, p.pending)
			p.writing, p.writingEvents = p.pending.Size(), int64(p.pending.Events())
			p.pending = nil
		}
	}
	f.mu.Unlock()
	f.emptyTrash() // before the files of an opening that was removed and added again
	slices.SortFunc(work, func(a, b *pending) int {
		return cmp.Or(strings.Compare(a.o.dir, b.o.dir), CompareKeys(a.p.ProfileKey, b.p.ProfileKey))
	})
	for i, w := range work {
		f.writeSamples(w)
		if i+1 == len(work) || work[i+1].o != w.o {
			f.writeIndex(w.o)
		}
	}
	f.mu.Lock()
	var dirty []*openingFiles
	for _, o := range f.openings {
		if o.dirty && o.kept { // an opening gets a directory with its first file
			dirty = append(dirty, o)
		}
	}
	f.mu.Unlock()
	for _, o := range dirty {
		f.writeIndex(o)
	}
	if len(work) > 0 {
		f.room()
	}
}

// writeSamples writes samples as a segment.
func (f *profileFiles) writeSamples(w *pending) {
	size, events := w.Size(), w.Events()
	var s segment
	var err error
	if events > 0 {
		s, err = f.writeSegment(w.o, w.p, w.Finish(w.p.Executable), true)
	}
	f.mu.Lock()
	f.memory -= size
	w.p.writing, w.p.writingEvents = 0, 0
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
		var all []string // a new list, because readers keep the old list
		for _, phase := range phases {
			if w.phases[phase] || slices.Contains(w.p.Phases, phase) {
				all = append(all, phase)
			}
		}
		w.p.Phases = all
	}
	w.o.dirty = true
	f.stalled = false
	f.progressed()
	failing := f.failing
	f.failing = err != nil
	f.mu.Unlock()
	if err != nil {
		f.dropped(DroppedDisk, int64(events))
		if !failing {
			f.log.Error("console's profiles not written, their samples are lost", zap.Int("samples", events), zap.Error(err))
		}
	} else if failing {
		f.log.Info("console's profiles are written again", zap.String("directory", f.dir))
	}
}

// progressed wakes the senders that wait for a write. The caller holds the lock.
func (f *profileFiles) progressed() {
	close(f.progress)
	f.progress = make(chan struct{})
}

// removeSegments removes segments from the index. The caller holds the lock.
func (p *profileFile) removeSegments(gone ...segment) {
	p.Segments = slices.DeleteFunc(p.Segments, func(s segment) bool { return slices.Contains(gone, s) })
}

// removeOldest removes the profiles of the opening whose samples ended first, but never
// the opening with the ID except. It reports whether it found an opening to remove.
func (f *profileFiles) removeOldest(except string) bool {
	f.mu.Lock()
	var oldest *openingFiles
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
	f.remove(oldest.Opening.ID)
	f.dropped(DroppedProfiles, 1)
	return true
}

// end returns the time at which the last profile of an opening ends. It covers
// samples in memory and on disk.
func (o *openingFiles) end() (end time.Time) {
	end = o.Opening.Triggered
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

// remove forgets the profiles of an opening. The goroutine that writes
// deletes the files.
func (f *profileFiles) remove(id string) {
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
			p.pending = nil
		}
	}
	f.hurry()
}
