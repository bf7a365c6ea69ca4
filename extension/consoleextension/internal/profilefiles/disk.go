// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"bytes"
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

func (f *Files) dirOf(id string) string { return filepath.Join(f.options.Directory, hashed(id)) }

// blocks returns the disk space of a file of n bytes on most filesystems, in bytes.
func blocks(n int64) int64 { return (n + 4095) / 4096 * 4096 }

// openingOverhead is the disk space of an opening's directory and index, in bytes.
const openingOverhead = 8 << 10

// load reads the indexes. It removes leftovers of a crash, and openings that are not kept.
func (f *Files) load() error {
	if err := os.MkdirAll(f.options.Directory, 0o700); err != nil {
		return fmt.Errorf("make the directory of the console's profiles: %w", err)
	}
	entries, err := os.ReadDir(f.options.Directory)
	if err != nil {
		return fmt.Errorf("list the console's profiles: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(f.options.Directory, e.Name())
		if !e.IsDir() {
			continue
		}
		o, err := f.loadOpening(dir)
		kept := false
		if err == nil {
			if o.of, kept = f.options.Keep(o.Description, o.end()); f.dirOf(o.of.ID) != dir {
				err = fmt.Errorf("%w: index of opening %.40q", errContent, o.of.ID)
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the collector ended before it wrote the first index
		case errors.Is(err, errContent):
			f.options.Logger.Error("console's profiles of an opening damaged, removed", zap.String("directory", dir), zap.Error(err))
			f.options.Dropped(DroppedDamaged, 1)
		case err != nil:
			return fmt.Errorf("read the console's profiles: %w", err)
		case kept:
			f.openings[o.of.ID] = o
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
func (f *Files) loadOpening(dir string) (*opening, error) {
	content, err := readFile(filepath.Join(dir, indexName), maxIndex)
	if err != nil {
		return nil, err
	}
	o := &opening{dir: dir, last: f.options.Uptime() - f.limits.idle}
	if err := json.Unmarshal(content, o); err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	if o.Version != indexVersion {
		return nil, fmt.Errorf("%w: index with version %d", errContent, o.Version)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{} // of regular files
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sizes[e.Name()] = info.Size()
		}
	}
	listed := map[string]bool{indexName: true}
	o.Profiles = slices.DeleteFunc(o.Profiles, func(p *profileFile) bool { return p == nil })
	for _, p := range o.Profiles {
		p.Bytes = 0
		p.Segments = slices.DeleteFunc(p.Segments, func(s segment) bool {
			size, found := sizes[s.Name]
			if found && size == s.Bytes {
				listed[s.Name] = true
				return false
			}
			p.Damaged++
			f.logDamaged(o, s, fmt.Errorf("it has %d bytes in place of %d", size, s.Bytes))
			return true
		})
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
func (f *Files) writeSegment(o *opening, p *profileFile, of *profile.Profile, mayMakeRoom bool) (segment, error) {
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
func (f *Files) writeFile(o *opening, name string, content []byte, mayMakeRoom bool) error {
	for tries := 0; ; tries++ {
		err := os.MkdirAll(o.dir, 0o700)
		if err == nil {
			err = f.write(filepath.Join(o.dir, name), content)
		}
		f.mu.Lock()
		mayMakeRoom = mayMakeRoom && !o.gone
		f.mu.Unlock()
		if !mayMakeRoom || !atomicfile.Full(err) || tries == 8 || !f.RemoveOldest(o.of.ID) {
			return err
		}
		f.options.Logger.Warn("disk full, console's oldest profiles removed", zap.String("directory", f.options.Directory), zap.Error(err))
		f.emptyTrash()
	}
}

// writeIndex writes the index of an opening.
func (f *Files) writeIndex(o *opening) {
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
		f.options.Logger.Error("console's index of profiles not written", zap.String("directory", o.dir), zap.Error(err))
	}
}

// failed marks the disk as failing. It returns true if the disk was not marked before.
func (f *Files) failed() (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, f.failing = !f.failing, true
	return first
}

// emptyTrash deletes the files of removed openings.
func (f *Files) emptyTrash() {
	f.mu.Lock()
	trash := f.trash
	f.trash = nil
	f.mu.Unlock()
	for _, dir := range trash {
		if err := os.RemoveAll(dir); err != nil {
			f.options.Logger.Warn("console's old profiles not removed", zap.String("directory", dir), zap.Error(err))
		}
	}
}

// merge merges the segments of each profile that has many segments, that gets no more
// samples, or that has reached a limit.
func (f *Files) merge() {
	var due []func()
	f.mu.Lock()
	now := f.options.Uptime()
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
func (f *Files) mergeProfile(o *opening, p *profileFile) {
	f.mu.Lock()
	old := slices.Clone(p.Segments)
	f.mu.Unlock()
	merged, err := f.merged(context.Background(), o, p, old, false)
	var s segment
	if merged != nil {
		s, err = f.writeSegment(o, p, merged, false)
	}
	if err != nil && f.failed() { // the next successful write is followed by another attempt
		f.options.Logger.Warn("console's profile files not merged", zap.String("directory", o.dir), zap.Error(err))
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
func (f *Files) damaged(o *opening, p *profileFile, s segment, cause error) bool {
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
func (f *Files) logDamaged(o *opening, s segment, cause error) {
	f.options.Dropped(DroppedDamaged, 1)
	f.options.Logger.Error("console's profile file damaged, its samples are lost", zap.String("directory", o.dir), zap.String("file", s.Name), zap.Error(cause))
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
