// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/pprof/profile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/internal/boundedread"
)

// segment is one gzipped pprof file of a profile.
type segment struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Memory int    `json:"memory"` // estimated memory for reading the segment, in bytes
}

const (
	indexName    = "opening.json"
	indexVersion = 1
	// maxIndex and maxContent are the maximum numbers of bytes that are read from a file.
	// They are needed because other programs may have changed the file.
	maxIndex   = 8 << 20
	maxContent = 64 << 20
)

// hashed returns a hash of strings for use as a file name. Senders therefore cannot choose
// file names.
func hashed(texts ...string) string {
	h := sha256.New()
	for _, s := range texts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (f *profileFiles) dirOf(id string) string { return filepath.Join(f.dir, hashed(id)) }

// blocks returns the disk space of a file of n bytes on most filesystems, in bytes.
func blocks(n int64) int64 { return (n + 4095) / 4096 * 4096 }

// openingOverhead is the disk space of an opening's directory and index, in bytes.
const openingOverhead = 8 << 10

// load reads the indexes. It removes leftovers of a crash, and openings that keep rejects.
// end is the time at which the last profile of the opening ends.
func (f *profileFiles) load(keep func(of Opening, end time.Time) bool) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the console's profiles: %w", err)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("list the console's profiles: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(f.dir, e.Name())
		if !e.IsDir() {
			continue
		}
		o, err := f.loadOpening(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the collector ended before it wrote the first index
		case errors.Is(err, errContent):
			f.log.Error("console's profiles of an opening damaged, removed", zap.String("directory", dir), zap.Error(err))
			f.dropped(DroppedDamaged, 1)
		case err != nil:
			return fmt.Errorf("read the console's profiles: %w", err)
		case keep(o.Opening, o.end()):
			f.openings[o.Opening.ID] = o
			f.profiles += len(o.Profiles)
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the console's old profiles: %w", err)
		}
	}
	return nil
}

// loadOpening reads the index of a directory. It removes files that
// the index does not list.
func (f *profileFiles) loadOpening(dir string) (*openingFiles, error) {
	content, err := readFile(filepath.Join(dir, indexName), maxIndex)
	if err != nil {
		return nil, err
	}
	o := &openingFiles{dir: dir, last: f.uptime() - f.limits.idle, kept: true}
	if err := json.Unmarshal(content, o); err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	if o.Version != indexVersion || o.Opening.ID == "" || f.dirOf(o.Opening.ID) != dir {
		return nil, fmt.Errorf("%w: index with version %d of opening %.40q", errContent, o.Version, o.Opening.ID)
	}
	listed := map[string]bool{indexName: true}
	o.Profiles = slices.DeleteFunc(o.Profiles, func(p *profileFile) bool { return p == nil })
	for _, p := range o.Profiles {
		segments := p.Segments
		p.Bytes, p.Segments = 0, nil
		for _, s := range segments {
			info, err := os.Lstat(filepath.Join(dir, s.Name))
			if s.Name != filepath.Base(s.Name) || err != nil || !info.Mode().IsRegular() || info.Size() != s.Bytes {
				p.Damaged++
				f.logDamaged(o, s, err)
				continue
			}
			listed[s.Name] = true
			p.Segments = append(p.Segments, s)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// readFile reads a file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	content, _, err := boundedread.File(path, limit)
	if errors.Is(err, boundedread.ErrNotRegular) || errors.Is(err, boundedread.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", errContent, err)
	}
	return content, err
}

// writeSegment writes a profile to a file of an opening.
func (f *profileFiles) writeSegment(o *openingFiles, p *profileFile, of *profile.Profile, mayMakeRoom bool) (segment, error) {
	var content bytes.Buffer
	z, _ := gzip.NewWriterLevel(&content, gzip.BestSpeed)
	err := of.WriteUncompressed(z)
	err = errors.Join(err, z.Close())
	if err != nil {
		return segment{}, fmt.Errorf("encode a profile: %w", err)
	}
	s := segment{Bytes: int64(content.Len()), Memory: sizeOf(of)}
	s.Name = fmt.Sprintf("%s-%d.pb.gz", hashed(p.Type, p.Origin, p.Scope, fmt.Sprint(p.Moment)), time.Now().UnixNano())
	return s, f.writeFile(o, s.Name, content.Bytes(), mayMakeRoom)
}

// writeFile writes a file of an opening. If the disk is full and mayMakeRoom is true, it
// removes the oldest profiles and tries again.
func (f *profileFiles) writeFile(o *openingFiles, name string, content []byte, mayMakeRoom bool) error {
	for tries := 0; ; tries++ {
		err := os.MkdirAll(o.dir, 0o700)
		if err == nil {
			err = f.write(filepath.Join(o.dir, name), content)
		}
		f.mu.Lock()
		o.kept = o.kept || err == nil
		mayMakeRoom = mayMakeRoom && !o.gone
		f.mu.Unlock()
		if !mayMakeRoom || !atomicfile.Full(err) || tries == 8 || !f.removeOldest(o.Opening.ID) {
			return err
		}
		f.log.Warn("disk full, console's oldest profiles removed", zap.String("directory", f.dir), zap.Error(err))
		f.emptyTrash()
	}
}

// writeIndex writes the index of an opening.
func (f *profileFiles) writeIndex(o *openingFiles) {
	f.mu.Lock()
	if o.gone {
		f.mu.Unlock()
		return
	}
	out := *o
	out.Profiles = slices.DeleteFunc(slices.Clone(o.Profiles), func(p *profileFile) bool { return !p.known() })
	content, err := json.Marshal(out)
	o.dirty = false
	f.mu.Unlock()
	if err == nil {
		err = f.writeFile(o, indexName, content, true)
	}
	if err == nil {
		return
	}
	f.mu.Lock()
	o.dirty = !o.gone
	f.mu.Unlock()
	if f.failed() {
		f.log.Error("console's index of profiles not written", zap.String("directory", o.dir), zap.Error(err))
	}
}

// failed marks the disk as failing. It returns true if the disk was not marked before.
func (f *profileFiles) failed() (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, f.failing = !f.failing, true
	return first
}

// emptyTrash deletes the files of removed openings.
func (f *profileFiles) emptyTrash() {
	f.mu.Lock()
	trash := f.trash
	f.trash = nil
	f.mu.Unlock()
	for _, dir := range trash {
		if err := os.RemoveAll(dir); err != nil {
			f.log.Warn("console's old profiles not removed", zap.String("directory", dir), zap.Error(err))
		}
	}
}

// merge merges the segments of each profile that has many segments, that gets no more
// samples, or that has reached a limit.
func (f *profileFiles) merge() {
	var due []func()
	f.mu.Lock()
	now := f.uptime()
	for _, o := range f.openings {
		for _, p := range o.Profiles {
			if f.failing {
				continue // a merge could not be written
			}
			large := o.size() >= f.limits.openingBytes || p.memory() >= f.limits.profile
			if len(p.Segments) >= f.limits.segments || len(p.Segments) > 1 && (large || now-o.last >= f.limits.idle) {
				due = append(due, func() { f.mergeProfile(o, p) })
			}
		}
	}
	f.mu.Unlock()
	for _, merge := range due {
		merge()
	}
}

// mergeProfile merges the segments of a profile into one.
func (f *profileFiles) mergeProfile(o *openingFiles, p *profileFile) {
	f.mu.Lock()
	old := slices.Clone(p.Segments)
	f.mu.Unlock()
	merged, err := f.plusAll(context.Background(), o, p, old, false)
	var s segment
	if merged != nil {
		s, err = f.writeSegment(o, p, merged, false)
	}
	if err != nil && f.failed() { // the next successful write is followed by another attempt
		f.log.Warn("console's profile files not merged", zap.String("directory", o.dir), zap.Error(err))
	}
	if err != nil || merged == nil {
		return
	}
	f.mu.Lock()
	p.removeSegments(old...)
	p.Segments = append([]segment{s}, p.Segments...)
	f.progressed()
	f.mu.Unlock()
	f.writeIndex(o)
	for _, s := range old {
		_ = os.Remove(filepath.Join(o.dir, s.Name)) // the next start removes leftovers
	}
}

// damaged removes an unreadable segment from the index. It returns false if the
// index no longer contains the segment, because another goroutine has merged the
// segment or has found it damaged.
func (f *profileFiles) damaged(o *openingFiles, p *profileFile, s segment, cause error) bool {
	f.mu.Lock()
	if !slices.Contains(p.Segments, s) {
		f.mu.Unlock()
		return false
	}
	p.removeSegments(s)
	p.Damaged++
	o.dirty = true
	f.mu.Unlock()
	f.logDamaged(o, s, cause)
	return true
}

// logDamaged counts and logs a damaged segment.
func (f *profileFiles) logDamaged(o *openingFiles, s segment, cause error) {
	f.dropped(DroppedDamaged, 1)
	f.log.Error("console's profile file damaged, its samples are lost", zap.String("directory", o.dir), zap.String("file", s.Name), zap.Error(cause))
}

// plus returns a new profile that contains the samples of p and of a segment.
func (f *profileFiles) plus(o *openingFiles, p *profile.Profile, s segment) (*profile.Profile, error) {
	add, err := readProfile(filepath.Join(o.dir, s.Name))
	if err != nil || p == nil {
		return add, err
	}
	start := cmp.Or(min(p.TimeNanos, add.TimeNanos), p.TimeNanos, add.TimeNanos)
	end := max(p.TimeNanos+p.DurationNanos, add.TimeNanos+add.DurationNanos)
	merged, err := profile.Merge([]*profile.Profile{p, add})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	merged.Comments = merged.Comments[:min(len(merged.Comments), maxComments)]
	merged.TimeNanos, merged.DurationNanos = start, end-start // Merge adds the durations
	return merged, nil
}

// maxComments is the maximum number of comments of a profile.
const maxComments = 100

// errContent is returned for a file whose content is damaged.
var errContent = errors.New("damaged")

// readProfile reads a gzipped pprof file.
func readProfile(path string) (*profile.Profile, error) {
	content, err := readFile(path, maxContent)
	if err != nil {
		return nil, err
	}
	p, err := parseProfile(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	return p, nil
}

func parseProfile(content []byte) (*profile.Profile, error) {
	z, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if content, err = boundedread.All(z, maxContent); err != nil {
		return nil, err
	}
	p, err := profile.ParseUncompressed(content)
	if err != nil {
		return nil, err
	}
	return p, p.CheckValid()
}
