// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/test/goprogramtest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// host is a directory that imitates the root directory of a host. The host has one
// process, which has a separate root directory.
type host struct {
	root, processRoot string
	pid               int
}

func newHost(t testing.TB) host {
	t.Helper()
	h := host{root: t.TempDir(), pid: 4711}
	return h.process(t, h.pid)
}

// process adds a process to the host and returns the host with this process. The process
// has its own mount namespace and its own root directory.
func (h host) process(t testing.TB, pid int) host {
	t.Helper()
	h.pid, h.processRoot = pid, filepath.Join(h.root, "roots", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(h.processRoot, 0o755))
	proc := filepath.Join(h.root, "proc", fmt.Sprint(pid))
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "ns"), 0o755))
	require.NoError(t, os.Symlink(h.processRoot, filepath.Join(proc, "root")))
	require.NoError(t, os.Symlink(fmt.Sprintf("mnt:[%d]", pid), filepath.Join(proc, "ns/mnt")))
	return h
}

func (h host) write(t testing.TB, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(h.processRoot, path), content, 0o644))
}

// mapping returns a mapping of the file at path in the process's root. The device and inode
// numbers of the mapping belong to the file at the path seen on the host.
func (h host) mapping(t testing.TB, path, seen string) *samples.Mapping {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(seen, &st))
	root, err := procfs.At(h.root).Root(h.pid)
	require.NoError(t, err)
	return &samples.Mapping{
		PID: h.pid, Path: path, Root: root, Start: 0x10_0000, Limit: 0x11_0000, Inode: st.Ino,
		DeviceMajor: unix.Major(st.Dev), DeviceMinor: unix.Minor(st.Dev),
	}
}

func TestOtherFilesThanTheMappedOneAreNotOpened(t *testing.T) {
	tests := map[string]func(h host, outside string) (path, seen string, err error){
		"fifo": func(h host, _ string) (string, string, error) {
			seen := filepath.Join(h.processRoot, "program")
			return "/program", seen, unix.Mkfifo(seen, 0o644)
		},
		"device": func(h host, _ string) (string, string, error) {
			seen := filepath.Join(h.processRoot, "program")
			return "/program", seen, unix.Mknod(seen, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3)))
		},
		"directory": func(h host, _ string) (string, string, error) {
			seen := filepath.Join(h.processRoot, "program")
			return "/program", seen, os.Mkdir(seen, 0o755)
		},
		"symbolic link out of the root, relative": func(h host, outside string) (string, string, error) {
			return "/program", outside, os.Symlink("../../../"+filepath.Base(outside), filepath.Join(h.processRoot, "program"))
		},
		"symbolic link out of the root, absolute": func(h host, outside string) (string, string, error) {
			return "/program", outside, os.Symlink(outside, filepath.Join(h.processRoot, "program"))
		},
		"symbolic link through a directory": func(h host, outside string) (string, string, error) {
			return "/dir/" + filepath.Base(outside), outside, os.Symlink(h.root, filepath.Join(h.processRoot, "dir"))
		},
		"path out of the root": func(h host, outside string) (string, string, error) {
			return "/../../../" + filepath.Base(outside), outside, nil
		},
		"link to a descriptor of ours": func(h host, outside string) (string, string, error) {
			return "/program", outside, os.Symlink("/proc/self/exe", filepath.Join(h.processRoot, "program"))
		},
		"another file by now": func(h host, outside string) (string, string, error) {
			return "/program", outside, os.WriteFile(filepath.Join(h.processRoot, "program"), goprogramtest.Program(120), 0o644)
		},
		"nothing": func(h host, outside string) (string, string, error) {
			return "/program", outside, nil
		},
		"deleted, and another one with that name": func(h host, outside string) (string, string, error) {
			seen := filepath.Join(h.processRoot, "program (deleted)")
			return "/program (deleted)", seen, os.WriteFile(seen, goprogramtest.Program(120), 0o644)
		},
		"name that is no path": func(h host, outside string) (string, string, error) {
			seen := filepath.Join(h.processRoot, "program")
			return "program", seen, os.WriteFile(seen, goprogramtest.Program(120), 0o644)
		},
	}
	for name, make := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			outside := filepath.Join(h.root, "outside")
			require.NoError(t, os.WriteFile(outside, goprogramtest.Program(120), 0o644))
			path, seen, err := make(h, outside)
			if err != nil {
				hosttest.SkipUnprivileged(t, "cannot make it: %v", err)
			}
			f, _, err := mappedfile.Open(nil, h.root, h.mapping(t, path, seen))
			if err == nil {
				f.Close()
			}
			require.Error(t, err)
		})
	}
}

func TestFileInAnotherRootIsNotOpened(t *testing.T) {
	h := newHost(t)
	h.write(t, "program", goprogramtest.Program(120))
	other := h.process(t, 1)
	require.NoError(t, os.Link(filepath.Join(h.processRoot, "program"), filepath.Join(other.processRoot, "program")))
	m := h.mapping(t, "/program", filepath.Join(h.processRoot, "program"))
	unknown := *m
	unknown.Root = 0
	link := filepath.Join(h.root, "proc/4711/root")
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(other.processRoot, link))
	for _, m := range []*samples.Mapping{m, &unknown} {
		_, _, err := mappedfile.Open(nil, h.root, m)
		require.Error(t, err)
		_, _, err = mappedfile.OpenRegular(nil, h.root, m.PID, m.Root, "/program")
		require.Error(t, err)
	}
	// A mapping that was seen in the new root is opened.
	f, _, err := mappedfile.Open(nil, h.root, h.mapping(t, "/program", filepath.Join(other.processRoot, "program")))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestLinksWithinTheRootAreFollowed(t *testing.T) {
	h := newHost(t)
	require.NoError(t, os.Mkdir(filepath.Join(h.processRoot, "usr"), 0o755))
	h.write(t, "usr/program", goprogramtest.Program(120))
	require.NoError(t, os.Symlink("/usr", filepath.Join(h.processRoot, "link"))) // the link's target is in the process's root
	f, id, err := mappedfile.Open(nil, h.root, h.mapping(t, "/link/program", filepath.Join(h.processRoot, "usr/program")))
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, int64(len(goprogramtest.Program(120))), id.Size)
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
}

// goLocation returns a location in the mapping m of goprogramtest.Program. At this
// location, main.inner is inlined into main.outer.
func goLocation(m *samples.Mapping) *samples.Location {
	return leaf(m, m.Start-m.FileOffset+goprogramtest.CodeOffset+8)
}

func TestFilesThatChange(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.processRoot, "program")
	h.write(t, "program", goprogramtest.Program(120))
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	m := h.mapping(t, "/program", path)
	l := goLocation(m)
	s.Resolve(0, l)
	require.Len(t, l.Lines, 2)

	require.NoError(t, os.Truncate(path, 10))
	next := goLocation(m)
	next.Address += 32
	s.Resolve(0, next) // the name of this second function has not been read yet
	require.True(t, next.Resolved)
	require.Empty(t, next.Lines)
	require.Equal(t, uint64(1), s.Counters().Locations[Invalid])

	again := goLocation(m)
	s.Resolve(0, again)
	require.Equal(t, l.Lines, again.Lines, "what was known stays known")
}

// TestBulkReadingHostileFilesIsBounded reads corrupt files. Reading a file must not panic, and
// must use a bounded amount of memory and time.
func TestBulkReadingHostileFilesIsBounded(t *testing.T) {
	goProgram, err := os.ReadFile(goCommand(t))
	require.NoError(t, err)
	le := binary.LittleEndian
	// Three fields of each section header are set to each of these values.
	values := []uint64{0, 1, 1 << 31, 1<<32 - 1, 1 << 40, 1 << 63, 1<<64 - 1, uint64(len(goProgram)) - 1}
	shoff := le.Uint64(goProgram[40:])
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tried := 0
	for i := range int(le.Uint16(goProgram[60:])) {
		for _, field := range []uint64{16, 24, 32} {
			at := shoff + uint64(i*goprogramtest.SectionHeaderSize) + field
			old := le.Uint64(goProgram[at:])
			for _, v := range values {
				le.PutUint64(goProgram[at:], v)
				tried++
				readHostile(goProgram)
			}
			le.PutUint64(goProgram[at:], old)
		}
	}
	for _, cut := range []int{0, 1, 63, 64, 100, 400, 4096, len(goProgram) / 2, len(goProgram) - 1} {
		readHostile(goProgram[:cut])
	}
	runtime.ReadMemStats(&after)
	perFile := (after.TotalAlloc - before.TotalAlloc) / uint64(tried)
	require.Less(t, perFile, uint64(8<<20))
}

func readHostile(file []byte) {
	o, err := newObject(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return
	}
	_ = o.index(4 << 20)
	for _, s := range o.f.Segments {
		_, _, _ = o.lookup(s.Address + 0x1234)
	}
}

func TestReadingASparseFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	file := goprogramtest.ELF(goprogramtest.Segment{Flags: 5, Data: make([]byte, 8)})
	const huge = 1 << 42
	le := binary.LittleEndian
	le.PutUint64(file[goprogramtest.HeaderSize+32:], huge)
	le.PutUint64(file[40:], uint64(len(file)))
	le.PutUint16(file[58:], goprogramtest.SectionHeaderSize)
	le.PutUint16(file[60:], 3)
	header := func(kind, link uint32, offset, size uint64) {
		b := make([]byte, goprogramtest.SectionHeaderSize)
		le.PutUint32(b[4:], kind)
		le.PutUint64(b[24:], offset)
		le.PutUint64(b[32:], size)
		le.PutUint32(b[40:], link)
		file = append(file, b...)
	}
	header(3, 0, 0, 8)
	header(2, 0, 4096, huge-4096) // the symbol table
	header(7, 0, 4096, huge-4096) // the notes
	require.NoError(t, os.WriteFile(path, file, 0o644))
	if err := os.Truncate(path, huge); err != nil {
		t.Skipf("no sparse files of that size here: %v", err)
	}
	r, err := os.Open(path)
	require.NoError(t, err)
	defer r.Close()
	o, err := newObject(r, huge)
	require.NoError(t, err)
	require.NotEmpty(t, o.f.Sections)
	o.f.SetBudget(16 << 20) // smaller than the default, to save time
	require.ErrorIs(t, o.index(1<<20), elffile.ErrBudget)
}

func TestDeletedAndReplacedProgramKeepsItsNames(t *testing.T) {
	path := build(t, nil, "gcc", "-O1", "-no-pie", "-o", "OUT", "testdata/native.c")
	p := start(t, path)
	require.Equal(t, "ready", p.line(t))
	before := mappingOf(t, mappings(t, p.pid), path)
	addr := addressOf(t, path, before, "exported")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, goprogramtest.Program(120), 0o755))
	for _, m := range []*samples.Mapping{before, mappingOf(t, mappings(t, p.pid), path)} {
		s := newSymbolizer(t, Config{})
		l := leaf(m, addr)
		s.Resolve(0, l)
		if len(l.Lines) == 0 && os.Geteuid() != 0 {
			hosttest.SkipUnprivileged(t, "map_files needs CAP_CHECKPOINT_RESTORE")
		}
		require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines, m.Path)
	}
}

func TestShortLivedProcessKeepsItsNames(t *testing.T) {
	path := build(t, nil, "gcc", "-O1", "-no-pie", "-o", "OUT", "testdata/native.c")
	p := start(t, path)
	require.Equal(t, "ready", p.line(t))
	maps := mappings(t, p.pid)
	m := mappingOf(t, maps, path)
	addr := addressOf(t, path, m, "exported")
	s := newSymbolizer(t, Config{})
	s.Track(m)
	eventually(t, "the file is open", func() bool { return s.Counters().Objects == 1 })
	p.stop()
	l := leaf(m, addr)
	s.Resolve(0, l)
	require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines)

	late := leaf(mappingOf(t, maps, "libc.so"), mappingOf(t, maps, "libc.so").Start)
	s.Resolve(0, late) // the file was not opened before it was replaced
	require.True(t, late.Resolved)
	require.Empty(t, late.Lines)
	require.Equal(t, uint64(1), s.Counters().Locations[Unreadable])
}

type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// TestOneFileIsOpenOnce checks that a file is opened only once if processes with different
// roots run the file.
func TestOneFileIsOpenOnce(t *testing.T) {
	path := build(t, nil, "gcc", "-no-pie", "-Wl,--build-id=sha1", "-o", "OUT", "testdata/native.c")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	h := newHost(t)
	h.write(t, "program", content)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	var others []host
	for pid := 1; pid <= 3; pid++ {
		other := h.process(t, pid)
		require.NoError(t, os.Link(filepath.Join(h.processRoot, "program"), filepath.Join(other.processRoot, "program")))
		others = append(others, other)
	}
	addr := uint64(0)
	for _, other := range others {
		m := other.mapping(t, "/program", filepath.Join(other.processRoot, "program"))
		addr = addressOf(t, path, m, "exported")
		l := leaf(m, addr)
		s.Resolve(0, l)
		require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines)
		require.NotEmpty(t, m.BuildID)
	}
	require.Equal(t, 1, s.Counters().Objects)

	// A build ID does not identify a file. Copies and stripped files have the same build
	// ID, and any file can claim it.
	h.write(t, "other", content)
	other := h.mapping(t, "/other", filepath.Join(h.processRoot, "other"))
	s.Resolve(0, leaf(other, addr))
	require.Equal(t, 2, s.Counters().Objects)
}

// hostWith returns a host with n programs that have no build ID, and
// the mappings of these programs.
func hostWith(t *testing.T, n int) (host, []*samples.Mapping) {
	h := newHost(t)
	var maps []*samples.Mapping
	for i := range n {
		name := fmt.Sprint("program", i)
		h.write(t, name, goprogramtest.Program(120))
		maps = append(maps, h.mapping(t, "/"+name, filepath.Join(h.processRoot, name)))
	}
	return h, maps
}

func TestCacheEvictsUnusedFiles(t *testing.T) {
	for name, cfg := range map[string]Config{
		"objects": {MaxObjects: 2},
		"bytes":   {CacheBytes: 4 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			h, maps := hostWith(t, 20)
			cfg.Root = h.root
			s := newSymbolizer(t, cfg)
			for _, m := range maps {
				for _, m := range []*samples.Mapping{m, maps[0]} {
					l := goLocation(m)
					s.Resolve(0, l)
					require.Len(t, l.Lines, 2)
				}
				c := s.Counters()
				require.LessOrEqual(t, c.Objects, s.cfg.MaxObjects)
				require.LessOrEqual(t, c.Bytes, s.cfg.CacheBytes)
			}
			c := s.Counters()
			require.Positive(t, c.Evictions)
			// The first file was never evicted, because it was in use all the time.
			require.Equal(t, uint64(len(maps)), c.Evictions+uint64(c.Objects))
		})
	}
}

func TestUnusedFilesAreClosed(t *testing.T) {
	h, maps := hostWith(t, 3)
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
	for _, m := range maps {
		s.Resolve(0, goLocation(m))
	}
	clock.advance(idleTimeout / 2)
	s.Resolve(0, goLocation(maps[0]))
	clock.advance(idleTimeout / 2)
	s.mu.Lock()
	s.objects.expire(clock.Now())
	s.mu.Unlock()
	c := s.Counters()
	require.Equal(t, 1, c.Objects)
	require.Zero(t, c.Evictions, "nothing was full")

	l := goLocation(maps[1])
	s.Resolve(0, l)
	require.Len(t, l.Lines, 2, "opened again")
}

func TestFileThatChangedUnderItsInodeIsReadAgain(t *testing.T) {
	h, maps := hostWith(t, 1)
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	s := prepare(Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
	s.tracked(maps[0])
	first, outcome := s.objectOf(0, maps[0])
	require.Equal(t, Resolved, outcome)

	s.tracked(maps[0])
	clock.advance(checkInterval)
	s.tracked(maps[0])
	same, _ := s.objectOf(0, maps[0])
	require.Same(t, first, same)

	h.write(t, "program0", append(goprogramtest.Program(118), 0))
	clock.advance(checkInterval - 1)
	s.tracked(maps[0])
	same, _ = s.objectOf(0, maps[0])
	require.Same(t, first, same, "looked at a moment ago")
	clock.advance(1)
	s.tracked(maps[0])
	other, _ := s.objectOf(0, maps[0])
	require.NotSame(t, first, other)
	a, _, err := other.lookup(goprogramtest.Text)
	require.NoError(t, err)
	require.Zero(t, a.lines[0].StartLine, "Go 1.18 does not record it")
	s.Close()
	require.Zero(t, s.Counters().Objects)
	require.Zero(t, s.Counters().Bytes)
}

func TestNamesWaitWhenReadingHasHadItsTime(t *testing.T) {
	h, maps := hostWith(t, 2)
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	budget := cputime.NewBudget(0.02, zap.NewNop(), clock.Now)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root, Budget: budget}, Now: clock.Now})
	// This process has ended, so its files cannot be read.
	const heavy = 77
	budget.Spend(heavy, 1500*time.Millisecond)
	greedy := *maps[0]
	greedy.PID = heavy
	l := goLocation(&greedy)
	s.Resolve(heavy, l)
	require.False(t, l.Resolved)
	require.Equal(t, uint64(1), s.Counters().Locations[Pending])
	s.Resolve(heavy, &samples.Location{Address: 1})
	require.Equal(t, uint64(2), s.Counters().Locations[Pending], "its perf map waits, too")
	require.Equal(t, uint64(2), budget.Waits())
	s.Track(&greedy)
	require.Eventually(t, func() bool { return s.Counters().Dropped == 1 }, time.Minute, time.Millisecond)

	other := goLocation(maps[1])
	s.Resolve(h.pid, other)
	require.Len(t, other.Lines, 2, "another process does not wait")

	budget.SetHot(map[int]string{heavy: "hot"})
	s.Resolve(heavy, l)
	require.Equal(t, uint64(1), s.Counters().Locations[Unreadable], "nor does a hot unit, which has its own part")
	budget.SetHot(nil)
	clock.advance(time.Hour)
	require.True(t, budget.May(heavy))
}

// sparse writes an ELF file of 64 MiB. The symbol table of the file is a hole.
func sparse(t *testing.T, path string) {
	t.Helper()
	const size, code = 64 << 20, 1 << 20
	var b bytes.Buffer
	put := func(at int, v any) {
		b.Write(make([]byte, at-b.Len()))
		require.NoError(t, binary.Write(&b, binary.NativeEndian, v))
	}
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}
	put(0, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: 64, Shoff: 4096,
		Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 3, Shstrndx: 2,
	})
	put(64, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: code, Memsz: code, Align: 4096})
	put(4096, []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_SYMTAB), Off: code, Size: size - code, Link: 2, Entsize: 24},
		{Name: 9, Type: uint32(elf.SHT_STRTAB), Off: 8192, Size: 32},
	})
	put(8192, []byte("\x00.symtab\x00.strtab\x00"))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	require.NoError(t, os.Truncate(path, size))
}

// TestHotProcessWithFilesWithoutEndStaysWithinItsShare covers a process of a hot unit
// that uses more and more sparse files. Reading its symbols must stay within the budget
// of hot units. The symbols of another process must still be read.
func TestHotProcessWithFilesWithoutEndStaysWithinItsShare(t *testing.T) {
	h, maps := hostWith(t, 1)
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	const share, hog, files = 0.02, 77, 30
	budget, meter := cputime.NewBudget(share, zap.NewNop(), clock.Now), new(cputime.Meter)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root, Budget: budget, Meter: meter}, Now: clock.Now})
	s.openTimeout = time.Minute
	hot := map[int]string{h.pid: "hog"}
	budget.SetHot(hot)
	s.Begin(hot)
	budget.Spend(h.pid, 1500*time.Millisecond) // uses up the saved budget of hot units
	budget.Spend(h.pid, 150*time.Millisecond)

	read, most := 0, time.Duration(0) // the longest time for reading one file
	for i := range files {
		name := fmt.Sprint("sparse", i)
		sparse(t, filepath.Join(h.processRoot, name))
		m := h.mapping(t, "/"+name, filepath.Join(h.processRoot, name))
		before := meter.Total()
		l := leaf(m, m.Start+100)
		s.Resolve(h.pid, l)
		if l.Resolved {
			require.Greater(t, meter.Total(), before, "its time is counted")
			read, most = read+1, max(most, meter.Total()-before)
		}
	}
	require.Positive(t, most)
	require.LessOrEqual(t, meter.Total(), 100*time.Millisecond+most, "it reads until nothing is left")
	require.Less(t, read, files)
	require.Positive(t, budget.Waits())
	other := *maps[0]
	other.PID = hog
	require.True(t, budget.May(other.PID), "another process reads on")
	clock.advance(10 * time.Minute) // adds 12 s to the budget
	l := goLocation(maps[0])
	s.Resolve(h.pid, l)
	require.Len(t, l.Lines, 2, "so does the hot one, later")
}

func TestBatchWaitsForFilesOnce(t *testing.T) {
	h, maps := hostWith(t, 3)
	s := prepare(Config{Access: mappedfile.Access{Root: h.root}}) // the worker is not started
	s.openTimeout = 50 * time.Millisecond
	// waits reports whether resolving a location waits for its file.
	waits := func(i int) bool {
		s.giveUpUntil = time.Time{}
		if len(s.urgent) > 0 {
			<-s.urgent
		}
		l := goLocation(maps[i])
		s.Resolve(0, l)
		require.False(t, l.Resolved)
		return !s.giveUpUntil.IsZero()
	}
	require.True(t, waits(0))
	require.False(t, waits(1), "this batch has waited for as long as it may")
	s.Begin(nil)
	require.True(t, waits(2))
}

// TestReadingNamesOfOneProcessLeavesTimeForOthers checks that a process whose symbols
// take long to read leaves time for the symbols of other processes.
func TestReadingNamesOfOneProcessLeavesTimeForOthers(t *testing.T) {
	h, maps := hostWith(t, 1)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	offset := uint64(0)
	resolve := func(pid int) bool {
		l := goLocation(maps[0])
		offset++ // a known address would be resolved without reading
		l.Address += offset
		s.Resolve(pid, l)
		return l.Resolved
	}
	const hog, hot, other = 1, 2, 3
	s.Begin(map[int]string{hot: "hot"})
	require.True(t, resolve(hog))
	require.Positive(t, s.made.time)
	require.Equal(t, s.made, s.madeBy[hog])
	s.named(hog, effort{time: maxMaking / 8})
	require.False(t, resolve(hog))
	require.True(t, resolve(other))
	for pid := range 8 {
		s.named(10+pid, effort{time: maxMaking / 8})
	}
	require.False(t, resolve(other), "all time is over")
	require.True(t, resolve(hot), "but for that of hot units")
	s.named(hot, effort{time: maxMaking / 2})
	require.False(t, resolve(hot), "of which a process has a part")
	s.Begin(nil)
	for _, pid := range []int{hog, hot, other} {
		require.True(t, resolve(pid), "another batch")
	}
}

func TestUnreadableFileIsTriedThroughAnotherProcess(t *testing.T) {
	h, maps := hostWith(t, 1)
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
	gone := *maps[0]
	gone.PID = 1
	for range 3 {
		l := goLocation(&gone)
		s.Resolve(0, l)
		require.True(t, l.Resolved)
		require.Empty(t, l.Lines)
	}
	require.Equal(t, uint64(3), s.Counters().Locations[Unreadable])
	l := goLocation(maps[0])
	s.Resolve(0, l)
	require.Len(t, l.Lines, 2)
	l = goLocation(&gone)
	s.Resolve(0, l)
	require.Len(t, l.Lines, 2, "it is the same file")
}

func TestResolveWaitsForABoundedTime(t *testing.T) {
	h, maps := hostWith(t, 2)
	require.NoError(t, os.WriteFile(filepath.Join(h.root, "proc/kallsyms"), []byte("ffffffff81000000 T _text\n"), 0o644))
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	s := prepare(Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now}) // the worker is not started yet
	s.openTimeout = time.Millisecond
	locations := []*samples.Location{goLocation(maps[0]), goLocation(maps[1]), {Type: samples.FrameKernel, Address: 1 << 63}}
	for range 2 {
		for _, l := range locations {
			s.Resolve(0, l)
			require.False(t, l.Resolved)
		}
	}
	require.Equal(t, clock.Now().Add(patience), s.giveUpUntil, "the others did not wait")
	clock.advance(patience)
	s.start()
	defer s.Close()
	s.openTimeout = openTimeout
	for _, l := range locations[:2] {
		s.Resolve(0, l)
		require.Len(t, l.Lines, 2)
	}
}

func TestFullQueueDropsAndCounts(t *testing.T) {
	h, maps := hostWith(t, 1)
	s := prepare(Config{Access: mappedfile.Access{Root: h.root}})
	for range queueLength + 3 {
		s.Track(maps[0])
	}
	s.Track(&samples.Mapping{Path: "[heap]"}) // not a file, so it is not counted
	require.Equal(t, uint64(3), s.Counters().Dropped)
	allocs := testing.AllocsPerRun(100, func() { s.Track(maps[0]) })
	require.Zero(t, allocs)
	s.start()
	defer s.Close()
	l := goLocation(maps[0])
	s.Resolve(0, l)
	require.Len(t, l.Lines, 2)
}

func TestCodeWithoutAFileHasNoNames(t *testing.T) {
	h := newHost(t)
	h.write(t, "memfd:code", []byte(strings.Repeat("\xc3", 4096)))
	script := h.mapping(t, "/memfd:code", filepath.Join(h.processRoot, "memfd:code"))
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	for _, m := range []*samples.Mapping{nil, {Path: "//anon"}, {Path: "[heap]"}, {Path: "[uprobes]"}, {}, script} {
		l := &samples.Location{Mapping: m, Address: 0x1234}
		if m != nil && m.Start > 0 {
			l.Address = m.Start + 16
		}
		s.Resolve(0, l)
		require.True(t, l.Resolved)
		require.Empty(t, l.Lines)
		require.Equal(t, samples.FrameNative, l.Type)
	}
	require.Equal(t, uint64(6), s.Counters().Locations[NoFile])
}

func TestHiddenKernelSymbols(t *testing.T) {
	h := newHost(t)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	require.ErrorContains(t, s.KernelSymbols(), "kallsyms")
	require.NoError(t, os.WriteFile(filepath.Join(h.root, "proc/kallsyms"), []byte("0000000000000000 T _text\n"), 0o644))
	s = newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	require.ErrorContains(t, s.KernelSymbols(), "kptr_restrict")
	l := &samples.Location{Type: samples.FrameKernel, Address: 0xffffffff81000000}
	s.Resolve(0, l)
	require.True(t, l.Resolved)
	require.Empty(t, l.Lines)
	require.Equal(t, uint64(1), s.Counters().Locations[Hidden])
}

func TestModulesLoadedLaterAreFound(t *testing.T) {
	h := newHost(t)
	kallsyms := filepath.Join(h.root, "proc/kallsyms")
	require.NoError(t, os.WriteFile(kallsyms, []byte("ffffffff81000000 T _text\nffffffff81000100 D data\n"), 0o644))
	clock := &testClock{now: time.Unix(1_000_000, 0)}
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
	resolve := func() string {
		l := &samples.Location{Type: samples.FrameKernel, Address: 0xffffffffc0000010, Leaf: true}
		s.Resolve(0, l)
		if len(l.Lines) == 0 {
			return ""
		}
		return l.Lines[0].Function
	}
	require.Empty(t, resolve())
	require.NoError(t, os.WriteFile(kallsyms, []byte("ffffffff81000000 T _text\nffffffffc0000000 t probe\t[driver]\n"), 0o644))
	require.Empty(t, resolve(), "read a moment ago")
	clock.advance(kernelInterval)
	eventually(t, "the module is found", func() bool { return resolve() == "probe [driver]" })
}

func TestLifecycle(t *testing.T) {
	h, maps := hostWith(t, 1)
	s := New(Config{Access: mappedfile.Access{Root: h.root}})
	s.Close()
	s.Close()
	s.Track(maps[0])
	l := goLocation(maps[0])
	s.Resolve(0, l)
	require.False(t, l.Resolved)
	for o := range numOutcomes {
		require.NotEmpty(t, o.String())
	}
}

// TestTrackWhileResolving opens and evicts files while addresses in these files are
// resolved.
func TestTrackWhileResolving(t *testing.T) {
	h, maps := hostWith(t, 20)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, MaxObjects: 2})
	var trackers sync.WaitGroup
	for range 2 {
		trackers.Go(func() {
			for i := range 2000 {
				s.Track(maps[i%len(maps)])
			}
		})
	}
	pending := 0 // each location counts as pending at most once
	for i := range 500 {
		l := goLocation(maps[i%len(maps)])
		if s.Resolve(0, l); !l.Resolved {
			pending++
		}
		for !l.Resolved {
			s.Begin(nil) // a batch waits only for a bounded time
			s.Resolve(0, l)
		}
		require.Len(t, l.Lines, 2)
	}
	trackers.Wait()
	c := s.Counters()
	require.Equal(t, uint64(500), c.Locations[Resolved])
	require.Equal(t, uint64(pending), c.Locations[Pending])
}

// TestProgramOnOverlayfs covers the file system that containers use. On overlayfs, device
// and inode numbers may differ from the numbers of the lower layers.
func TestProgramOnOverlayfs(t *testing.T) {
	program, err := os.ReadFile(build(t, nil, "gcc", "-O1", "-no-pie", "-o", "OUT", "testdata/native.c"))
	require.NoError(t, err)
	dir := t.TempDir()
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	mount := func(source, target, kind, options string) {
		target = filepath.Join(dir, target)
		if err := unix.Mount(source, target, kind, 0, options); err != nil {
			hosttest.SkipUnprivileged(t, "cannot mount %s: %v", kind, err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) })
	}
	mount("tmpfs", "lower", "tmpfs", "") // the lower layer is on another file system than the upper layer
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lower/program"), program, 0o755))
	mount("overlay", "merged", "overlay", fmt.Sprintf("lowerdir=%s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
	path := filepath.Join(dir, "merged/program")
	p := start(t, path)
	require.Equal(t, "ready", p.line(t))
	m := mappingOf(t, mappings(t, p.pid), path)
	addr := addressOf(t, path, m, "exported")
	split := *m
	// If a part of a mapping was unmapped, the recorded mapping is longer than the real
	// mapping. Then it has no entry in map_files.
	split.Limit += 4096
	for _, m := range []*samples.Mapping{m, &split} {
		l := leaf(m, addr)
		newSymbolizer(t, Config{}).Resolve(0, l)
		require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines)
	}
}

func TestKnownAddressAllocatesNothing(t *testing.T) {
	h, maps := hostWith(t, 1)
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	l := goLocation(maps[0])
	s.Resolve(0, l)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.Resolved, l.Lines = false, nil
		s.Resolve(0, l)
	}))
	require.Len(t, l.Lines, 2)
}
