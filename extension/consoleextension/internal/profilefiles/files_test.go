// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// files is a Files with a fake clock. It writes files only when a test calls
// files.later.
type files struct {
	*Files
	t       testing.TB
	now     time.Duration
	logs    *observer.ObservedLogs
	mu      sync.Mutex
	dropped map[string]int64
}

func openFiles(t testing.TB, dir string, change func(*limits)) *files {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	f := &files{t: t, logs: logs, dropped: map[string]int64{}, now: time.Hour}
	limits := limitsOf(300 << 20)
	limits.wait = time.Nanosecond
	if change != nil {
		change(&limits)
	}
	f.Files = newFiles(Options{
		Directory: dir,
		Logger:    zap.New(core),
		Uptime:    func() time.Duration { return f.now },
		Keep: func(description []byte, _ time.Time) (of Opening, kept bool) {
			err := json.Unmarshal(description, &of)
			return of, err == nil
		},
		Dropped: func(what string, n int64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if n > 0 {
				f.dropped[what] += n
			}
		},
		Written: func() {},
	}, limits)
	require.NoError(t, f.load())
	return f
}

// blocked lets all writes wait until the returned channel is closed.
func (f *files) blocked() chan struct{} {
	answer, write := make(chan struct{}), f.write
	f.write = func(path string, content []byte) error {
		<-answer
		return write(path, content)
	}
	return answer
}

// later advances the clock and then writes all samples that are due.
func (f *files) later(d time.Duration) {
	f.now += d
	f.flush(false)
	f.merge()
}

func (f *files) profile(id string, key ProfileKey) *profile.Profile {
	f.t.Helper()
	p, err := f.Profile(context.Background(), id, key)
	require.NoError(f.t, err)
	require.NoError(f.t, p.CheckValid())
	return p
}

// paths returns the paths of all files, in the order of their directories.
func (f *files) paths() (segments, others []string) {
	require.NoError(f.t, filepath.WalkDir(f.options.Directory, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || e.IsDir():
		case strings.HasSuffix(path, ".pb.gz"):
			segments = append(segments, path)
		default:
			others = append(others, path)
		}
		return err
	}))
	return segments, others
}

// sample is a part of a request, with its opening.
type sample struct {
	opening Opening
	Samples
}

// samplesOf splits a request into samples in the same way as the intake. An opening
// describes itself.
func samplesOf(in pprofile.Profiles) (all []sample) {
	d := dictionary.NewReader(in.Dictionary())
	for _, rp := range in.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				attributes := pprofconv.Attributes(d, p)
				of := Opening{ID: attributes[attr.TriggerID]}
				of.Triggered, _ = time.Parse(time.RFC3339, attributes[attr.TriggerTime])
				of.Description = of
				for _, part := range pprofconv.PartsOf(d.ProfileType(p), p) {
					all = append(all, sample{of, Samples{
						Executable: "app",
						Scope:      sp.Scope().Name(),
						Dictionary: d,
						Part:       part,
						Attributes: attributes,
					}})
				}
			}
		}
	}
	return all
}

func (f *files) send(in pprofstest.Input) {
	for _, s := range samplesOf(in.Build(f.t)) {
		f.Add(s.opening, s.Samples)
	}
}

const triggered = "2026-05-28T20:26:42Z"

func phased(id, phase string) map[string]string {
	reason := pprofstest.Reason("0a1b", id, triggered)
	reason[attr.TriggerPhase] = phase
	return reason
}

// cpuKey returns the key of the CPU profiles that pprofstest builds.
func cpuKey(f *files, id string) ProfileKey {
	f.t.Helper()
	infos := f.Infos(id)
	require.Len(f.t, infos, 1)
	require.Equal(f.t, "cpu", infos[0].Type)
	return infos[0].ProfileKey
}

// byPhase returns the values of a profile, by function and labels.
func byPhase(p *profile.Profile) map[string]int64 {
	got := map[string]int64{}
	for _, s := range p.Sample {
		key := []string{s.Location[0].Line[0].Function.Name}
		for _, label := range []string{attr.TriggerPhase, attr.ThreadName} {
			key = append(key, s.Label[label]...)
		}
		got[strings.Join(key, " ")] += s.Value[0]
	}
	return got
}

// TestIncompleteStacks checks that a profile contains the number of incomplete stacks,
// and the time of the last incomplete stack.
func TestIncompleteStacks(t *testing.T) {
	dir := t.TempDir()
	f := openFiles(t, dir, nil)
	send := func(later time.Duration, incomplete bool) {
		in := pprofile.NewProfiles()
		pprofstest.Input{Profile: phased("t1", "both"), Hot: 5, Cold: 2, Later: later}.Build(t).CopyTo(in)
		if incomplete {
			d := in.Dictionary()
			d.StringTable().Append(attr.StackTruncated)
			a := d.AttributeTable().AppendEmpty()
			a.SetKeyStrindex(int32(d.StringTable().Len() - 1))
			a.Value().SetStr("true")
			hot := in.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0)
			hot.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
			hot.TimestampsUnixNano().FromRaw([]uint64{uint64(pprofstest.WindowStart), uint64(pprofstest.WindowStart + later.Nanoseconds() + 3), uint64(pprofstest.WindowStart + 1)})
		}
		for _, s := range samplesOf(in) {
			f.Add(s.opening, s.Samples)
		}
		f.later(f.limits.flush)
	}
	send(0, false)
	require.Zero(t, f.Infos("t1")[0].Incomplete)
	send(time.Second, true)
	send(0, true)
	send(2*time.Second, false)
	want := func() {
		t.Helper()
		i := f.Infos("t1")[0]
		require.EqualValues(t, 6, i.Incomplete)
		require.EqualValues(t, pprofstest.WindowStart+time.Second.Nanoseconds()+3, i.LastIncomplete.UnixNano())
	}
	want()
	f = openFiles(t, dir, nil)
	want()
}

func TestProfileOfAnOpeningIsOne(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "before"), Hot: 5, Cold: 2})
	f.send(pprofstest.Input{Profile: phased("t2", "baseline"), Hot: 1})
	require.Empty(t, f.Infos("t1"), "nothing is on disk")
	f.later(f.limits.flush)
	require.Equal(t, map[string]int64{"main.hot before": 5, "main.cold before worker": 2}, byPhase(f.profile("t1", cpuKey(f, "t1"))))
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 7, Later: 5 * time.Second})
	f.send(pprofstest.Input{Profile: phased("t1", "before"), Hot: 1})
	f.later(f.limits.flush)

	want := map[string]int64{"main.hot before": 6, "main.cold before worker": 2, "main.hot both": 7}
	check := func() {
		t.Helper()
		infos := f.Infos("t1")
		require.Len(t, infos, 1)
		i := infos[0]
		require.Equal(t, []string{"before", "both"}, i.Phases)
		require.EqualValues(t, 15, i.Samples)
		require.Equal(t, "nanoseconds", i.Unit)
		require.EqualValues(t, pprofstest.WindowStart, i.Start.UnixNano())
		require.EqualValues(t, pprofstest.WindowStart+2*pprofstest.Window, i.End.UnixNano())
		require.Zero(t, i.Truncated)
		p := f.profile("t1", i.ProfileKey)
		require.Equal(t, want, byPhase(p))
		require.EqualValues(t, pprofstest.WindowStart, p.TimeNanos)
		require.EqualValues(t, 2*pprofstest.Window, p.DurationNanos)
		require.EqualValues(t, pprofstest.Period, p.Period)
		require.Equal(t, "/bin/app", p.Mapping[0].File)
		require.Contains(t, p.Comments, "hotprofile.trigger.id=t1")
		require.Equal(t, map[string]int64{"main.hot baseline": 1}, byPhase(f.profile("t2", cpuKey(f, "t2"))))
		segments, _ := f.paths()
		on := int64(0)
		for _, s := range segments {
			info, err := os.Stat(s)
			require.NoError(t, err)
			on += blocks(info.Size())
		}
		require.Equal(t, on+2*openingOverhead, f.Size())
	}
	check()
	segments, _ := f.paths()
	require.Len(t, segments, 3)
	f.later(f.limits.idle)
	segments, _ = f.paths()
	require.Len(t, segments, 2, "merged")
	check()
	f = openFiles(t, f.options.Directory, nil)
	check()
	require.Empty(t, f.dropped)

	f.Remove("t1")
	f.Remove("none")
	_, err := f.Profile(context.Background(), "t1", cpuKey(f, "t2"))
	require.ErrorIs(t, err, ErrNotFound)
	f.Remove("t2")
	f.emptyTrash()
	require.Zero(t, f.Size())
	require.Zero(t, f.profiles)
	entries, err := os.ReadDir(f.options.Directory)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestSegmentsAreMergedWhileAnOpeningRuns checks that merging keeps the samples of all
// segments, even if the profile was read before.
func TestSegmentsAreMergedWhileAnOpeningRuns(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	for i := range 3 * f.limits.segments {
		f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 1, Stacks: i})
		f.later(f.limits.flush)
		segments, _ := f.paths()
		require.Less(t, len(segments), f.limits.segments)
		if i%3 > 0 {
			p := f.profile("t1", cpuKey(f, "t1"))
			require.EqualValues(t, i+1, byPhase(p)["main.hot both"])
			p.Sample = nil // the caller owns the profile
		}
	}
	n := int64(3 * f.limits.segments)
	require.EqualValues(t, n+n*(n-1)/2, f.Infos("t1")[0].Samples)
}

// TestTypesAreNotMixed checks that profiles of different profilers, and snapshots of
// different moments, are kept separately.
func TestTypesAreNotMixed(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	change := func(typ, unit, scope string, moments ...uint64) {
		in := pprofile.NewProfiles()
		pprofstest.Input{Profile: phased("t1", "both"), Hot: 2, Cold: 1}.Build(t).CopyTo(in)
		sp := in.ResourceProfiles().At(0).ScopeProfiles().At(0)
		sp.Scope().SetName(scope)
		p := sp.Profiles().At(0)
		s := in.Dictionary().StringTable()
		s.Append(typ, unit)
		p.SampleType().SetTypeStrindex(int32(s.Len() - 2))
		p.SampleType().SetUnitStrindex(int32(s.Len() - 1))
		for i, at := range moments {
			p.Samples().At(i).TimestampsUnixNano().FromRaw([]uint64{at})
			p.Samples().At(i).Values().FromRaw([]int64{7})
		}
		for _, s := range samplesOf(in) {
			f.Add(s.opening, s.Samples)
		}
	}
	change("samples", "count", "a")
	change("samples", "count", "b")
	change("cpu", "microseconds", "a")
	change("cpu", "microseconds", "a")
	change("goroutines", "count", "a", 5, 6)
	f.later(f.limits.flush)
	f.later(f.limits.idle)
	got := map[string]int64{}
	for _, i := range f.Infos("t1") {
		sum := int64(0)
		for _, s := range f.profile("t1", i.ProfileKey).Sample {
			sum += s.Value[0]
		}
		got[fmt.Sprintf("%s of %s at %d in %s", i.Type, i.Scope, i.Moment, i.Unit)] = sum
	}
	require.Equal(t, map[string]int64{
		"cpu of a at 0 in nanoseconds":                                      3,
		"cpu of b at 0 in nanoseconds":                                      3,
		"cpu (cpu microseconds, cpu nanoseconds) of a at 0 in microseconds": 6,
		"goroutines of a at 5 in count":                                     7,
		"goroutines of a at 6 in count":                                     7,
	}, got)
}

func TestWhatACrashLeavesIsRemoved(t *testing.T) {
	dir := t.TempDir()
	f := openFiles(t, dir, nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 5})
	f.later(f.limits.flush)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 2})
	of := f.openings["t1"].dir
	// Opening the store must remove three kinds of leftovers: a segment that is in no index, an
	// unfinished file, and an opening without an index.
	segments, _ := f.paths()
	content, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	for _, left := range []string{filepath.Join(of, "x.pb.gz"), filepath.Join(of, "opening.json.tmp")} {
		require.NoError(t, os.WriteFile(left, content, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, hashed("t2")), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, hashed("t2"), "x.pb.gz"), content, 0o600))
	f = openFiles(t, dir, nil)
	require.Equal(t, map[string]int64{"main.hot both": 5}, byPhase(f.profile("t1", cpuKey(f, "t1"))))
	after, others := f.paths()
	require.Equal(t, segments, after)
	require.Equal(t, []string{filepath.Join(of, indexName)}, others)
	require.Empty(t, f.dropped)
}

func TestDamagedFilesAreLeftOut(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string, content []byte){
		"cut off": func(t *testing.T, path string, content []byte) {
			require.NoError(t, os.WriteFile(path, content[:len(content)/2], 0o600))
		},
		"changed": func(t *testing.T, path string, content []byte) {
			content[len(content)/2] ^= 0xff
			require.NoError(t, os.WriteFile(path, content, 0o600))
		},
		"empty": func(t *testing.T, path string, _ []byte) { require.NoError(t, os.WriteFile(path, nil, 0o600)) },
		"gone":  func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path)) },
		"a directory": func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		},
		"zeros": func(t *testing.T, path string, content []byte) {
			require.NoError(t, os.WriteFile(path, make([]byte, len(content)), 0o600))
		},
	} {
		for _, reopened := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", reopened: ", reopened), func(t *testing.T) {
				f := openFiles(t, t.TempDir(), nil)
				f.send(pprofstest.Input{Profile: phased("t1", "before"), Hot: 5})
				f.later(f.limits.flush)
				first, _ := f.paths()
				f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 2})
				f.later(f.limits.flush)
				content, err := os.ReadFile(first[0])
				require.NoError(t, err)
				damage(t, first[0], content)
				if reopened {
					f = openFiles(t, f.options.Directory, nil)
				}
				key := cpuKey(f, "t1")
				require.Equal(t, map[string]int64{"main.hot both": 2}, byPhase(f.profile("t1", key)))
				require.Equal(t, 1, f.Infos("t1")[0].Damaged)
				require.EqualValues(t, 1, f.dropped[DroppedDamaged])
				require.Equal(t, 1, f.logs.FilterMessage("console's profile file damaged, its samples are lost").Len())
				f.later(f.limits.idle)
				f = openFiles(t, f.options.Directory, nil)
				require.Equal(t, 1, f.Infos("t1")[0].Damaged)

				second, _ := f.paths()
				require.Len(t, second, 1)
				require.NoError(t, os.Truncate(second[0], 1))
				_, err = f.Profile(context.Background(), "t1", key)
				require.ErrorIs(t, err, ErrDamaged)
				require.Equal(t, 2, f.Infos("t1")[0].Damaged)
				f.send(pprofstest.Input{Profile: phased("t1", "after"), Hot: 1})
				f.later(f.limits.flush)
				require.Equal(t, map[string]int64{"main.hot after": 1}, byPhase(f.profile("t1", key)))
			})
		}
	}
}

func TestDamagedIndexIsRemoved(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 5})
	f.send(pprofstest.Input{Profile: phased("t2", "both"), Hot: 5})
	f.later(f.limits.flush)
	require.NoError(t, os.Truncate(filepath.Join(f.openings["t1"].dir, indexName), 10))
	f = openFiles(t, f.options.Directory, nil)
	require.Empty(t, f.Infos("t1"))
	require.Equal(t, map[string]int64{"main.hot both": 5}, byPhase(f.profile("t2", cpuKey(f, "t2"))))
	require.EqualValues(t, 1, f.dropped[DroppedDamaged])
	entries, err := os.ReadDir(f.options.Directory)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	// An index that was copied from another opening is ignored.
	require.NoError(t, os.Rename(filepath.Join(f.options.Directory, entries[0].Name()), filepath.Join(f.options.Directory, hashed("t3"))))
	f = openFiles(t, f.options.Directory, nil)
	require.Empty(t, f.openings)
}

// TestNamesOfFilesAreNotChosenByOthers checks that strings from profiles never appear in
// file names.
func TestNamesOfFilesAreNotChosenByOthers(t *testing.T) {
	parent := t.TempDir()
	f := openFiles(t, filepath.Join(parent, "profiles"), nil)
	huge := strings.Repeat("../", 1<<20)
	for _, s := range samplesOf(pprofstest.Input{Profile: phased("../../x", "both"), Hot: 1}.Build(t)) {
		for _, text := range []string{"../../x", "/etc/passwd", "..", "", "a\x00b", huge, ".tmp", indexName} {
			s.opening.ID, s.Scope, s.Origin = "t"+hashed(text), text, text
			f.Add(s.opening, s.Samples)
			s.opening.ID = text
			f.Add(s.opening, s.Samples)
		}
	}
	f.later(f.limits.flush)
	f.later(f.limits.idle)
	name := regexp.MustCompile(`^profiles/[0-9a-f]{32}/([0-9a-f]{32}-[0-9]+\.pb\.gz|opening\.json)$`)
	require.NoError(t, filepath.WalkDir(parent, func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		if !e.IsDir() {
			rel, err := filepath.Rel(parent, path)
			require.NoError(t, err)
			require.Regexp(t, name, filepath.ToSlash(rel))
			info, err := e.Info()
			require.NoError(t, err)
			require.EqualValues(t, 0o600, info.Mode().Perm())
		}
		return nil
	}))
}

func (f *files) truncated(id string) (n int64) {
	for _, i := range f.Infos(id) {
		n += i.Truncated
	}
	return n
}

func TestOpeningIsBounded(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		f := openFiles(t, t.TempDir(), func(l *limits) { l.openingBytes = 256 << 10 })
		for i := range 60 {
			in := pprofile.NewProfiles()
			pprofstest.Input{Profile: phased("t1", "both"), Stacks: 300}.Build(t).CopyTo(in)
			for k := range in.Dictionary().StringTable().Len() {
				if s := in.Dictionary().StringTable().At(k); strings.HasPrefix(s, "main.f") {
					in.Dictionary().StringTable().SetAt(k, hashed(s, fmt.Sprint(i))+hashed(fmt.Sprint(i), s))
				}
			}
			for _, s := range samplesOf(in) {
				f.Add(s.opening, s.Samples)
			}
			f.later(f.limits.flush)
			require.Less(t, f.Size(), int64(400<<10))
		}
		info := f.Infos("t1")[0]
		require.Positive(t, info.Truncated)
		require.EqualValues(t, 60*300, info.Samples+info.Truncated)
		require.Equal(t, info.Truncated, f.dropped[DroppedOpeningFull])
		require.Greater(t, f.Size(), int64(128<<10))
		f.profile("t1", info.ProfileKey)
		f = openFiles(t, f.options.Directory, func(l *limits) { l.openingBytes = 256 << 10 })
		require.Equal(t, info.Truncated, f.truncated("t1"), "the index has it")
	})
	t.Run("memory of one profile", func(t *testing.T) {
		f := openFiles(t, t.TempDir(), func(l *limits) { l.profile = 1 << 20 })
		for i := range 20 {
			in := pprofile.NewProfiles()
			pprofstest.Input{Profile: phased("t1", "both"), Stacks: 1000}.Build(t).CopyTo(in)
			for k := range in.Dictionary().LocationTable().Len() {
				l := in.Dictionary().LocationTable().At(k)
				l.SetAddress(l.Address() + uint64(i)<<20)
			}
			for _, s := range samplesOf(in) {
				f.Add(s.opening, s.Samples)
			}
			f.later(f.limits.flush)
		}
		info := f.Infos("t1")[0]
		require.Positive(t, info.Truncated)
		require.EqualValues(t, 20_000, info.Samples+info.Truncated)
		require.LessOrEqual(t, sizeOf(f.profile("t1", info.ProfileKey)), 3<<20/2)
	})
	t.Run("profiles", func(t *testing.T) {
		f := openFiles(t, t.TempDir(), func(l *limits) { l.profiles = 5 })
		for i := range 10 {
			for _, s := range samplesOf(pprofstest.Input{Profile: phased("t1", "both"), Hot: 3}.Build(t)) {
				s.Scope = fmt.Sprint(i)
				f.Add(s.opening, s.Samples)
			}
		}
		f.later(f.limits.flush)
		require.Len(t, f.Infos("t1"), 5)
		require.EqualValues(t, 15, f.dropped[DroppedOpeningFull])
	})
}

// TestOldestProfilesMakeRoom checks that the profiles that ended first are removed first.
func TestOldestProfilesMakeRoom(t *testing.T) {
	f := openFiles(t, t.TempDir(), func(l *limits) { l.total = 6 })
	for i := range 12 {
		f.send(pprofstest.Input{Profile: phased(fmt.Sprint("t", i), "both"), Hot: 5, Later: time.Duration(i) * time.Minute})
	}
	f.later(f.limits.flush)
	for f.TooMany() {
		require.True(t, f.RemoveOldest("t2"))
	}
	for i := range 12 {
		require.Equal(t, i >= 7 || i == 2, len(f.Infos(fmt.Sprint("t", i))) > 0, "opening %d", i)
	}
	require.EqualValues(t, map[string]int64{DroppedProfiles: 6}, f.dropped)
	f.emptyTrash()
	entries, err := os.ReadDir(f.options.Directory)
	require.NoError(t, err)
	require.Len(t, entries, 6)
}

// TestDiskThatDoesNotAnswerHoldsNothingUp checks that samples are dropped and counted
// while the disk does not respond.
func TestDiskThatDoesNotAnswerHoldsNothingUp(t *testing.T) {
	f := openFiles(t, t.TempDir(), func(l *limits) { l.memory = 1 << 20 })
	answer := f.blocked()
	go f.run()
	sent := int64(0)
	for i := range 50 {
		f.send(pprofstest.Input{Profile: phased(fmt.Sprint("t", i), "both"), Stacks: 100})
		sent += 100
		f.Files.mu.Lock()
		require.Less(t, f.memory, 3<<20)
		f.Files.mu.Unlock()
	}
	close(answer)
	f.Close()
	kept := int64(0)
	for i := range 50 {
		for _, info := range f.Infos(fmt.Sprint("t", i)) {
			kept += info.Samples
		}
	}
	require.Positive(t, kept)
	require.Equal(t, map[string]int64{DroppedMemory: sent - kept}, f.dropped)
	require.Zero(t, f.memory)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 1})
	require.EqualValues(t, sent-kept+1, f.dropped[DroppedMemory], "after stop")
}

func TestFailedWriteIsCountedAndLoggedOnce(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "profiles")
	f := openFiles(t, dir, nil)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // a file blocks the directory's path
	for range 3 {
		f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 2})
		f.later(f.limits.flush)
	}
	require.EqualValues(t, 6, f.dropped[DroppedDisk])
	require.EqualValues(t, 6, f.truncated("t1"))
	require.Equal(t, 1, f.logs.FilterMessage("console's profiles not written, their samples are lost").Len())
	require.NoError(t, os.Remove(dir))
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 3})
	f.later(f.limits.flush)
	require.Equal(t, map[string]int64{"main.hot both": 3}, byPhase(f.profile("t1", cpuKey(f, "t1"))))
	require.Equal(t, 1, f.logs.FilterMessage("console's profiles are written again").Len())
	f = openFiles(t, dir, nil)
	require.EqualValues(t, 3, f.Infos("t1")[0].Samples)
}

// TestReadersAndWritersAtOnce checks that readers see all samples that
// were added before they read.
func TestReadersAndWritersAtOnce(t *testing.T) {
	f := openFiles(t, t.TempDir(), func(l *limits) { l.segments, l.flush, l.wait = 3, time.Millisecond, time.Minute })
	uptime := time.Now()
	f.options.Uptime = func() time.Duration { return time.Since(uptime) }
	go f.run()
	in := pprofstest.Input{Profile: phased("t1", "both"), Hot: 1, Stacks: 20}.Build(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200 {
				for _, s := range samplesOf(in) {
					f.Add(s.opening, s.Samples)
				}
			}
		})
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, i := range f.Infos("t1") {
					p, err := f.Profile(context.Background(), "t1", i.ProfileKey)
					require.NoError(t, err)
					sum := int64(0)
					for _, s := range p.Sample {
						sum += s.Value[0]
					}
					require.GreaterOrEqual(t, sum, i.Samples)
				}
				f.Remove("none")
			}
		})
	}
	wg.Wait()
	f.Close()
	close(done)
	readers.Wait()
	require.EqualValues(t, 400, byPhase(f.profile("t1", cpuKey(f, "t1")))["main.hot both"])
	require.Empty(t, f.dropped)
}

func TestEndDoesNotWaitForADiskThatDoesNotAnswer(t *testing.T) {
	f := openFiles(t, t.TempDir(), func(l *limits) { l.stop = time.Millisecond })
	answer := f.blocked()
	go f.run()
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 3})
	f.Close()
	require.Equal(t, map[string]int64{DroppedDisk: 3}, f.dropped)
	require.Equal(t, 1, f.logs.FilterMessage("disk does not answer, console's last profiles are lost").Len())
	close(answer)
	<-f.written
}

// TestFileThatCannotBeReadNowIsKept checks that a temporary error, such as too many open
// files, is not treated as damage.
func TestFileThatCannotBeReadNowIsKept(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 3})
	f.later(f.limits.flush)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 4})
	f.later(f.limits.flush)
	key := cpuKey(f, "t1")
	segments, _ := f.paths()
	away := filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.Rename(segments[0], away))
	require.NoError(t, os.Symlink(filepath.Base(segments[0]), segments[0])) // the link points to itself
	_, err := f.Profile(context.Background(), "t1", key)
	require.ErrorContains(t, err, filepath.Base(segments[0]))
	require.NotErrorIs(t, err, ErrDamaged)
	for range 3 {
		f.later(f.limits.idle)
	}
	require.Equal(t, 1, f.logs.FilterMessage("console's profile files not merged").Len())
	require.Zero(t, f.Infos("t1")[0].Damaged)
	require.NoError(t, os.Rename(away, segments[0]))
	require.Equal(t, map[string]int64{"main.hot both": 7}, byPhase(f.profile("t1", key)))
	require.Empty(t, f.dropped)
}

// TestEstimateOfAProfileIsCloseToTheHeap checks the memory estimate
// that the limits depend on.
func TestEstimateOfAProfileIsCloseToTheHeap(t *testing.T) {
	f := openFiles(t, t.TempDir(), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Stacks: 10_000})
	f.later(f.limits.flush)
	segments, _ := f.paths()
	require.Len(t, segments, 1)
	before := hosttest.Heap()
	p, err := readProfile(segments[0])
	require.NoError(t, err)
	held := hosttest.Heap() - before
	require.InEpsilon(t, held, sizeOf(p), 0.5, "%d bytes are held", held)
	t.Logf("%d samples take %d bytes on disk, %d in memory, %d estimated", len(p.Sample), f.Size(), held, sizeOf(p))
}

// TestOpeningsThatWaitForTheDiskAreBounded covers profiles that each belong to a
// different opening.
func TestOpeningsThatWaitForTheDiskAreBounded(t *testing.T) {
	f := openFiles(t, t.TempDir(), func(l *limits) { l.total = 10 })
	in := samplesOf(pprofstest.Input{Profile: phased("t", "both"), Hot: 1}.Build(t))[0]
	in.Executable = strings.Repeat("x", 1<<20)
	for i := range 1000 {
		in.opening.ID = fmt.Sprint("t", i)
		f.Add(in.opening, in.Samples)
	}
	require.Len(t, f.openings, 20)
	require.EqualValues(t, 980, f.dropped[DroppedMemory])
	f.later(f.limits.flush)
	for _, o := range f.openings {
		index, err := os.Stat(filepath.Join(o.dir, indexName))
		require.NoError(t, err)
		require.Less(t, index.Size(), int64(16<<10))
	}
}
