// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package unwind

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// object assembles an x86-64 object file with .eh_frame and .eh_frame_hdr. If sections is
// true, the file also has section headers.
func object(frames []byte, buildID string, sections bool) []byte {
	const (
		ehdr, phdr, shdr = 64, 56, 64
		headers          = 512
		codeOff          = 4096 // beyond the end of the file, because the code is not read
	)
	le := binary.LittleEndian
	index := uint64(headers) // the offset of .eh_frame_hdr, whose 8 bytes follow .eh_frame
	framesOff := index
	index += uint64(len(frames))
	note := words()
	note = le.AppendUint32(note, 4)
	note = le.AppendUint32(note, uint32(len(buildID)))
	note = le.AppendUint32(note, 3)
	note = append(append(note, "GNU\x00"...), buildID...)
	noteOff := index + 8
	names := "\x00.eh_frame\x00.note.gnu.build-id\x00.shstrtab\x00"
	namesOff := noteOff + uint64(len(note))
	tableOff := namesOff + uint64(len(names))

	b := make([]byte, tableOff)
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	le.PutUint16(b[16:], uint16(elf.ET_EXEC))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], codeAt)
	le.PutUint64(b[32:], ehdr)
	le.PutUint16(b[52:], ehdr)
	le.PutUint16(b[54:], phdr)
	le.PutUint16(b[56:], 3)
	le.PutUint16(b[58:], shdr)
	segment := func(i int, kind elf.ProgType, flags elf.ProgFlag, off, addr, size uint64) {
		p := b[ehdr+i*phdr:]
		le.PutUint32(p, uint32(kind))
		le.PutUint32(p[4:], uint32(flags))
		for j, v := range []uint64{off, addr, addr, size, size} {
			le.PutUint64(p[8+8*j:], v)
		}
	}
	segment(0, elf.PT_LOAD, elf.PF_R|elf.PF_X, codeOff, codeAt, codeSize)
	segment(1, elf.PT_LOAD, elf.PF_R, framesOff, sectionAt, uint64(len(frames))+8)
	segment(2, elf.PT_GNU_EH_FRAME, elf.PF_R, index, sectionAt+uint64(len(frames)), 8)
	copy(b[framesOff:], frames)
	copy(b[index:], []byte{1, 0x1b, 0xff, 0xff})
	le.PutUint32(b[index+4:], uint32(-int32(len(frames))-4))
	copy(b[noteOff:], note)
	copy(b[namesOff:], names)
	if !sections {
		return b
	}
	le.PutUint64(b[40:], tableOff)
	le.PutUint16(b[60:], 4)
	le.PutUint16(b[62:], 3)
	section := func(name uint32, kind elf.SectionType, addr, off, size uint64) {
		s := make([]byte, shdr)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], uint32(kind))
		le.PutUint64(s[16:], addr)
		le.PutUint64(s[24:], off)
		le.PutUint64(s[32:], size)
		b = append(b, s...)
	}
	section(0, elf.SHT_NULL, 0, 0, 0)
	section(1, elf.SHT_PROGBITS, sectionAt, framesOff, uint64(len(frames)))
	section(11, elf.SHT_NOTE, 0, noteOff, uint64(len(note)))
	section(30, elf.SHT_STRTAB, 0, namesOff, uint64(len(names)))
	return b
}

func oneFunction() []byte {
	var a assembler
	cie := a.cie("zR", 0x1b)
	a.fde(cie, codeAt+256, 256, 0x0e, 16)
	a.b = append(a.b, 0, 0, 0, 0)
	return a.b
}

func newTable(t testing.TB, b []byte) *Table {
	t.Helper()
	table, err := readTable(bytes.NewReader(b), int64(len(b)), 1<<20, maxFrames)
	require.NoError(t, err)
	return table
}

func TestTableOfAFileWithAndWithoutSections(t *testing.T) {
	named, unnamed := object(oneFunction(), "0123", true), object(oneFunction(), "0123", false)
	with, without := newTable(t, named), newTable(t, unnamed)
	require.Equal(t, with.pcs, without.pcs)
	require.Equal(t, with.rules, without.rules)
	require.EqualValues(t, 16, with.at(codeAt+300).cfaOff)
	addr, ok := with.address(4096 + 300)
	require.True(t, ok)
	require.EqualValues(t, codeAt+300, addr)
}

func TestProgramWithoutFramesHasAnEntry(t *testing.T) {
	table := newTable(t, object(nil, "0123", true))
	require.EqualValues(t, flagRoot, table.at(codeAt).flags)
	require.Zero(t, table.at(codeAt+64).flags)
}

func TestInvalidFilesAreRejected(t *testing.T) {
	good := object(oneFunction(), "0123", true)
	change := func(fn func(b []byte)) []byte {
		b := slices.Clone(good)
		fn(b)
		return b
	}
	for name, b := range map[string][]byte{
		"empty":           {},
		"text":            []byte("#!/bin/sh\necho nothing to see here, but long enough to be read as a header\n"),
		"cut off":         good[:100],
		"32 bits":         change(func(b []byte) { b[elf.EI_CLASS] = byte(elf.ELFCLASS32) }),
		"big-endian":      change(func(b []byte) { b[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }),
		"another machine": change(func(b []byte) { b[18] = byte(elf.EM_RISCV) }),
		"no code":         change(func(b []byte) { b[64+4] = byte(elf.PF_R) }),
		"code of any size": change(func(b []byte) {
			binary.LittleEndian.PutUint64(b[64+32:], 1<<40)
			binary.LittleEndian.PutUint64(b[64+40:], 1<<40)
		}),
		"code that wraps around": change(func(b []byte) {
			binary.LittleEndian.PutUint64(b[64+16:], 1<<63)
			binary.LittleEndian.PutUint64(b[64+32:], 1<<63-1)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readTable(bytes.NewReader(b), int64(len(b)), 1<<20, maxFrames)
			require.Error(t, err)
		})
	}
}

// endless imitates a sparse file of unlimited size.
type endless struct {
	head []byte
	read int64
}

func (e *endless) ReadAt(p []byte, off int64) (int, error) {
	e.read += int64(len(p))
	clear(p)
	if off < int64(len(e.head)) {
		copy(p, e.head[off:])
	}
	return len(p), nil
}

func TestReadingIsBoundedWhateverAFileClaims(t *testing.T) {
	le := binary.LittleEndian
	good := object(oneFunction(), "0123", true)
	sectionsAt := le.Uint64(good[40:])
	for name, change := range map[string]func(b []byte){
		"any number of sections": func(b []byte) {
			le.PutUint16(b[60:], 0)
			le.PutUint64(b[sectionsAt+32:], 1<<30)
		},
		"names of any size":      func(b []byte) { le.PutUint64(b[sectionsAt+3*64+32:], 1<<45) },
		"frames of any size":     func(b []byte) { le.PutUint64(b[sectionsAt+64+32:], 1<<45) },
		"a build id of any size": func(b []byte) { le.PutUint64(b[sectionsAt+2*64+32:], 1<<45) },
	} {
		t.Run(name, func(t *testing.T) {
			e := &endless{head: slices.Clone(good)}
			change(e.head)
			_, err := readTable(e, 1<<50, 1<<20, maxFrames)
			_ = err // the table may lack the parts that were too large
			require.Less(t, e.read, int64(maxFrames+64<<20))
		})
	}
}

func FuzzNewTable(f *testing.F) {
	f.Add(object(oneFunction(), "0123", true))
	f.Add(object(oneFunction(), "0123", false))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, _ := readTable(bytes.NewReader(b), int64(len(b)), 1<<20, maxFrames)
		if table != nil {
			require.Less(t, table.Bytes(), int64(16<<20))
			for at := uint64(codeAt); at < codeAt+1024; at += 7 {
				table.at(at)
			}
		}
	})
}

// files is a directory of object files. A mapping exists for each file.
type files struct {
	t      *testing.T
	dir    string
	cache  *Cache
	opened atomic.Int32
	now    time.Time
}

func newFiles(t *testing.T, maxBytes int64, maxFiles int) *files {
	f := &files{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0)}
	f.cache = newCache(Config{
		Open: func(_ *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
			f.opened.Add(1)
			return open(nil, m)
		},
		MaxBytes: maxBytes, MaxFiles: maxFiles,
		Now: func() time.Time { return f.now },
	})
	return f
}

func open(_ *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
	f, err := os.Open(m.Path)
	if err != nil {
		return nil, mappedfile.ID{}, err
	}
	info, err := f.Stat()
	stat := info.Sys().(*syscall.Stat_t)
	return f, mappedfile.ID{
		Device: stat.Dev, Inode: stat.Ino, Size: info.Size(),
		Modified: info.ModTime().UnixNano(), Changed: stat.Ctim.Nano(),
	}, err
}

func (f *files) write(name string, b []byte) *samples.Mapping {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	require.NoError(f.t, os.WriteFile(path, b, 0o600))
	hash := uint64(0)
	for _, c := range name {
		hash = hash*131 + uint64(c)
	}
	return &samples.Mapping{Path: path, Inode: hash, Start: codeAt, Limit: codeAt + codeSize, FileOffset: 4096}
}

// serve reads the queued files in the same way as the worker does.
func (f *files) serve() {
	f.cache.clock.Store(uint32(f.now.Sub(f.cache.began) / time.Second))
	for len(f.cache.queue) > 0 {
		f.cache.serve(<-f.cache.queue)
	}
}

func TestFileIsReadWhenFirstNeeded(t *testing.T) {
	f := newFiles(t, 0, 0)
	m := f.write("program", object(oneFunction(), "0123", true))
	table, ok := f.cache.Lookup(m)
	require.Nil(t, table)
	require.False(t, ok)
	f.cache.Lookup(m)
	f.serve()
	require.EqualValues(t, 1, f.opened.Load(), "asked for once")
	table, ok = f.cache.Lookup(m)
	require.True(t, ok)
	require.NotNil(t, table)
	stats := f.cache.Stats()
	require.EqualValues(t, 1, stats.Built)
	require.Equal(t, 1, stats.Files)
	require.Equal(t, table.Bytes(), stats.Bytes)
}

// TestOneFileHasOneTable checks that a file has one table even if several containers map it
// through different roots. Another file with the same build ID and size has its own table,
// because anyone can write such a file.
func TestOneFileHasOneTable(t *testing.T) {
	f := newFiles(t, 0, 0)
	a := f.write("a", object(oneFunction(), "0123", true))
	elsewhere := *a
	b := &elsewhere
	b.DeviceMinor, b.Root = 40, 4
	other := f.write("other", object(oneFunction(), "0123", true))
	f.cache.Lookup(a)
	f.cache.Lookup(b)
	f.cache.Lookup(other)
	f.serve()
	ta, _ := f.cache.Lookup(a)
	tb, _ := f.cache.Lookup(b)
	to, _ := f.cache.Lookup(other)
	require.Same(t, ta, tb)
	require.NotSame(t, ta, to)
	stats := f.cache.Stats()
	require.Equal(t, 3, stats.Files)
	require.Equal(t, 2, stats.Tables)
}

func TestUnreadableFileIsRetried(t *testing.T) {
	f := newFiles(t, 0, 0)
	m := &samples.Mapping{Path: filepath.Join(f.dir, "later"), Inode: 1}
	f.cache.Lookup(m)
	f.serve()
	table, ok := f.cache.Lookup(m)
	require.True(t, ok)
	require.Nil(t, table)
	require.EqualValues(t, 1, f.cache.Stats().Unreadable)
	later := f.write("later", object(oneFunction(), "0123", true))
	later.Inode = 1
	f.serve()
	require.EqualValues(t, 1, f.opened.Load())
	f.now = f.now.Add(checkInterval + time.Second)
	f.serve()
	f.cache.Lookup(later)
	f.serve()
	table, _ = f.cache.Lookup(later)
	require.NotNil(t, table)
}

// TestFileOfAProcessThatEndedIsReadThroughAnother covers a process that has ended, so
// that a file cannot be opened through the process. The file must then be opened at
// once through the next process that maps it.
func TestFileOfAProcessThatEndedIsReadThroughAnother(t *testing.T) {
	f := newFiles(t, 0, 0)
	m := f.write("libc", object(oneFunction(), "0123", true))
	inner := f.cache.cfg.Open
	f.cache.cfg.Open = func(c *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
		if m.PID < 3 {
			f.opened.Add(1)
			return nil, mappedfile.ID{}, fmt.Errorf("opening it: %w: %w", mappedfile.ErrNoRoot, syscall.ENOENT)
		}
		return inner(c, m)
	}
	of := func(pid int) *samples.Mapping {
		same := *m
		same.PID = pid
		return &same
	}
	f.cache.Lookup(of(1))
	f.serve()
	table, ok := f.cache.Lookup(of(1))
	require.True(t, ok, "not again through the same process")
	require.Nil(t, table)
	for pid := 2; pid <= 3; pid++ {
		_, ok = f.cache.Lookup(of(pid))
		require.False(t, ok, "it may come")
		f.serve()
	}
	require.EqualValues(t, 3, f.opened.Load())
	for pid := 1; pid <= 4; pid++ {
		table, ok = f.cache.Lookup(of(pid))
		require.True(t, ok)
		require.NotNil(t, table)
	}
	f.serve()
	require.EqualValues(t, 3, f.opened.Load())
}

func TestFileThatChangesIsReadAgain(t *testing.T) {
	f := newFiles(t, 0, 0)
	m := f.write("program", object(oneFunction(), "0123", true))
	f.cache.Lookup(m)
	f.serve()
	before, _ := f.cache.Lookup(m)
	check := func() *Table {
		f.now = f.now.Add(checkInterval + time.Second)
		f.serve()
		f.cache.Lookup(m)
		f.serve()
		table, _ := f.cache.Lookup(m)
		return table
	}
	require.Same(t, before, check())
	require.EqualValues(t, 1, f.cache.Stats().Built)
	require.EqualValues(t, 2, f.opened.Load())
	f.write("program", object(append(oneFunction(), oneFunction()...), "4567", true))
	require.NotSame(t, before, check())
	require.NoError(t, os.Remove(m.Path))
	require.NotNil(t, check(), "others may still run it")
}

func TestCacheEvictsTheLeastRecentlyUsed(t *testing.T) {
	for name, c := range map[string]struct {
		maxBytes func(one int64) int64
		maxFiles int
	}{
		"bytes": {func(one int64) int64 { return 3*one + one/2 }, 0},
		"files": {func(int64) int64 { return 0 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			one := newTable(t, object(oneFunction(), "0000", true)).Bytes()
			f := newFiles(t, c.maxBytes(one), c.maxFiles)
			var ms []*samples.Mapping
			for i := range 4 {
				m := f.write(string(rune('a'+i)), object(oneFunction(), "000"+string(rune('0'+i)), true))
				ms = append(ms, m)
				f.cache.Lookup(m)
				f.now = f.now.Add(time.Second)
				f.serve()
				if i > 0 {
					f.cache.Lookup(ms[0]) // the first file stays in use
				}
			}
			stats := f.cache.Stats()
			require.Equal(t, 3, stats.Files)
			require.EqualValues(t, 1, stats.Evicted)
			for i, want := range []bool{true, false, true, true} {
				_, ok := f.cache.Lookup(ms[i])
				require.Equal(t, want, ok, "file %d", i)
			}
		})
	}
}

// TestTablesOfProgramsThatRunAreKept checks that short-lived programs, such as compilers,
// do not evict the tables of programs that keep running.
func TestTablesOfProgramsThatRunAreKept(t *testing.T) {
	one := newTable(t, object(oneFunction(), "0000", true)).Bytes()
	f := newFiles(t, 3*one+one/2, 0)
	f.cache.cfg.Budget = cputime.NewBudget(1, zap.NewNop(), time.Now)
	pid, named := 0, 0
	begin := func() *samples.Mapping {
		pid, named = pid+1, named+1
		m := f.write(fmt.Sprint(named), object(oneFunction(), fmt.Sprintf("%04d", named), true))
		m.PID = pid
		f.cache.Lookup(m)
		f.now = f.now.Add(time.Second)
		f.serve()
		return m
	}
	has := func(m *samples.Mapping) bool {
		table, _ := f.cache.Lookup(m)
		return table != nil
	}
	var long []*samples.Mapping
	for range 3 {
		long = append(long, begin())
	}
	f.now = f.now.Add(time.Second)
	f.serve()
	for _, m := range long {
		require.True(t, has(m))
	}
	var last *samples.Mapping
	for range 9 {
		last = begin()
		require.False(t, has(last))
	}
	for _, m := range long {
		require.True(t, has(m))
	}
	require.EqualValues(t, 9, f.cache.Stats().LeftOut)
	require.Zero(t, f.cache.Stats().Evicted)

	// The program becomes part of a hot unit.
	require.True(t, f.cache.cfg.Budget.SetHot(map[int]string{last.PID: "unit"}))
	f.cache.RetryLeftOut()
	f.cache.Lookup(last)
	f.serve()
	require.True(t, has(last))
	require.EqualValues(t, 1, f.cache.Stats().Evicted)
}

// TestTablesThatAreIdleGiveWay checks that the table of a longer running program is
// evicted to make room for a new table only if it was not used for idleAfter seconds.
func TestTablesThatAreIdleGiveWay(t *testing.T) {
	one := newTable(t, object(oneFunction(), "0000", true)).Bytes()
	f := newFiles(t, one+one/2, 0)
	read := func(id string) *samples.Mapping {
		m := f.write(id, object(oneFunction(), id, true))
		f.cache.Lookup(m)
		f.serve()
		return m
	}
	old := read("0001")
	f.now = f.now.Add(time.Second)
	f.serve()
	table, _ := f.cache.Lookup(old)
	require.NotNil(t, table, "it is used for longer")

	f.now = f.now.Add((idleAfter - 1) * time.Second)
	f.serve()
	table, _ = f.cache.Lookup(read("0002"))
	require.Nil(t, table)
	require.EqualValues(t, 1, f.cache.Stats().LeftOut)

	f.now = f.now.Add(time.Second)
	f.serve()
	table, _ = f.cache.Lookup(read("0003"))
	require.NotNil(t, table)
	require.EqualValues(t, 1, f.cache.Stats().LeftOut)
}

func TestFullQueueDropsAndRetries(t *testing.T) {
	f := newFiles(t, 0, 0)
	for i := range queueLength {
		f.cache.Lookup(&samples.Mapping{Path: "/no such file", Inode: uint64(i + 1)})
	}
	m := f.write("program", object(oneFunction(), "0123", true))
	f.cache.Lookup(m)
	require.EqualValues(t, 1, f.cache.Stats().Dropped)
	f.serve()
	f.cache.Lookup(m)
	f.serve()
	_, ok := f.cache.Lookup(m)
	require.True(t, ok)
	require.Empty(t, f.cache.waiting)
}

func TestMemoryWithoutAFileHasNoTable(t *testing.T) {
	f := newFiles(t, 0, 0)
	for _, m := range []*samples.Mapping{{Path: "[vdso]"}, {Path: "//anon"}, {Path: "anon", Inode: 3}} {
		table, ok := f.cache.Lookup(m)
		require.Nil(t, table)
		require.True(t, ok)
	}
}

func TestVDSOIsReadOnce(t *testing.T) {
	image := object(oneFunction(), "0123", true)
	times := 0
	c := newCache(Config{VDSO: func() ([]byte, error) { times++; return image, nil }})
	m := &samples.Mapping{Path: mappedfile.VDSOPath}
	for range 3 {
		table, ok := c.Lookup(m)
		require.True(t, ok)
		require.NotNil(t, table)
		c.clock.Add(uint32(checkInterval/time.Second) + 1)
	}
	require.Empty(t, c.queue)
	require.Equal(t, 1, times)

	broken := newCache(Config{VDSO: func() ([]byte, error) { return nil, errors.New("none") }})
	table, ok := broken.Lookup(m)
	require.Nil(t, table)
	require.True(t, ok)
}

func TestLookupAllocatesNothing(t *testing.T) {
	f := newFiles(t, 0, 0)
	m := f.write("program", object(oneFunction(), "0123", true))
	f.cache.Lookup(m)
	f.serve()
	require.Zero(t, testing.AllocsPerRun(100, func() { f.cache.Lookup(m) }))
}

func TestWorkerReadsAndStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(path, object(oneFunction(), "0123", true), 0o600))
	c := NewCache(Config{Open: open})
	m := &samples.Mapping{Path: path, Inode: 1}
	require.Eventually(t, func() bool { _, ok := c.Lookup(m); return ok }, 30*time.Second, time.Millisecond)
	c.Close()
	c.Close()
}

// TestLargeFilesAreReadLast checks the order in which tables are built. The table of a
// large program may use up the CPU time budget, so the tables of the program's
// libraries must be built first.
func TestLargeFilesAreReadLast(t *testing.T) {
	c := newCache(Config{})
	ask := func(path string, bytes uint64) request {
		return request{mapping: &samples.Mapping{Path: path, Start: 1 << 20, Limit: 1<<20 + bytes}}
	}
	c.queue <- ask("libc", 1<<20)
	require.True(t, c.later(ask("node", 50<<20)))
	libc, node := <-c.queue, <-c.queue
	require.Equal(t, []string{"libc", "node"}, []string{libc.mapping.Path, node.mapping.Path})
	require.False(t, c.later(libc), "small files do not wait")
	require.False(t, c.later(node), "a file waits once")
}
