// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// maxComm is the maximum length of a process's or thread's name in bytes. Longer names are
// truncated. Linux limits names to 15 bytes, and names of kernel workers to 63 bytes.
const maxComm = 256

// procReader reads files of a procfs into a reused buffer. Each result is valid until the
// next call.
type procReader struct {
	procfs.FS
	access mappedfile.Access
	buf    []byte
}

func newProcReader(cfg Config) *procReader {
	return &procReader{FS: procfs.At(cfg.Root), access: cfg.Access, buf: make([]byte, 4096)}
}

// read returns up to limit bytes of a file. cut reports whether the file has more bytes.
func (r *procReader) read(path string, limit int) (content []byte, cut bool, err error) {
	r.buf, err = procfs.AppendFile(r.buf, path, limit)
	if errors.Is(err, procfs.ErrTooLarge) {
		return r.buf, true, nil
	}
	return r.buf, false, err
}

// memoryLimit is the longest time that the reading goroutine
// waits for the memory of a process.
const memoryLimit = 100 * time.Millisecond

// readMemory is like read, but for files such as maps and environ, whose content depends
// on the memory of a process. The read runs on another goroutine, because it blocks while
// another thread holds the lock of that memory. The CPU time of the read is charged to
// the process. cgroup is the content of the process's cgroup file.
func (r *procReader) readMemory(pid int, name, cgroup string, limit int) (content []byte, err error) {
	path := r.File(pid, name)
	content, err = r.within(pid, cgroup, path, func(buf []byte) ([]byte, error) { return procfs.AppendFile(buf, path, limit) })
	if errors.Is(err, procfs.ErrTooLarge) {
		err = nil
	}
	return content, err
}

// within runs a read of the memory of a process on another goroutine, for at most
// memoryLimit. path is the path of the file for log messages. read receives a buffer and
// returns the buffer with the content.
func (r *procReader) within(pid int, cgroup, path string, read func(buf []byte) ([]byte, error)) (content []byte, err error) {
	buf := r.buf
	var done struct { // after a timeout, the late read may still write to these fields
		content []byte
		err     error
	}
	if err := r.access.Runner.Run(stuckread.Key{Cgroup: cgroup, PID: pid}, path, memoryLimit, func(c *stuckread.Call) {
		r.access.Spend(pid, func() {
			c.Wait(nil, func() { done.content, done.err = read(buf) })
		})
	}); err != nil {
		if errors.Is(err, stuckread.ErrLate) {
			r.buf = make([]byte, 4096)
		}
		return nil, err
	}
	r.buf = done.content
	return r.buf, done.err
}

// trim releases the buffer if a large file made it grow.
func (r *procReader) trim() {
	if cap(r.buf) > 256<<10 {
		r.buf = make([]byte, 4096)
	}
}

// stat is the content of /proc/PID/stat, with the name as a string.
type stat struct {
	procfs.Stat
	name string
}

// stat reads /proc/PID/stat.
func (r *procReader) stat(pid int) (stat, error) {
	if !procfs.HasFiles {
		s, err := r.Stat(pid)
		return stat{Stat: s, name: text(s.Comm, maxComm)}, err
	}
	b, _, err := r.read(r.File(pid, "stat"), procfs.MaxStat)
	if err != nil {
		return stat{}, err
	}
	s, err := procfs.ParseStat(b)
	if err != nil {
		return stat{}, err
	}
	out := stat{Stat: s, name: text(s.Comm, maxComm)}
	out.Comm = nil // the next read overwrites it
	return out, nil
}

// hasArguments reports whether a process still has arguments. Every running program has at
// least one.
func (r *procReader) hasArguments(pid int, cgroup string) bool {
	b, _ := r.readMemory(pid, "cmdline", cgroup, 1)
	return len(b) > 0
}

// executable returns the path of the program that a process runs, as the process sees it.
// The path of a kernel thread is empty.
func (r *procReader) executable(pid int) (string, error) {
	path, err := r.Executable(pid)
	if err != nil {
		return "", err
	}
	return text([]byte(path), maxValue), nil
}

// threadName reads the name of a thread.
func (r *procReader) threadName(pid, tid int) (string, error) {
	b, _, err := r.read(r.File(pid, "task/"+strconv.Itoa(tid)+"/comm"), maxComm)
	if err != nil {
		return "", err
	}
	return text(bytes.TrimSuffix(b, []byte{'\n'}), maxComm), nil
}

// isLate reports whether a process's memory could not be read in time.
func isLate(err error) bool {
	return errors.Is(err, stuckread.ErrLate) || errors.Is(err, stuckread.ErrRefused)
}

// text converts untrusted bytes to a string that is safe to export. It uses at most limit
// bytes of b. Replaced invalid bytes may make the string longer.
func text(b []byte, limit int) string {
	return strings.ToValidUTF8(truncate.Cut(string(b[:min(len(b), limit+1)]), limit), "\uFFFD")
}
