// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount is a mounted file system that can stop answering, like a file system with an
// unreachable server. The server is this process, so this process must not start a program
// that is on the file system. While the file system does not answer, this process must not
// start any program, because a new process begins by closing the inherited files.
type Mount struct {
	Dir string

	device int
	files  [][]byte // node i+2 is file i
	names  map[string]uint64
	done   chan struct{}

	mu     sync.Mutex
	silent bool
	failed int // number of reads that still have to fail
	asked  int
	held   [][]byte
}

// These are the request codes of FUSE, from linux/fuse.h.
const (
	fuseLookup, fuseForget, fuseGetattr       = 1, 2, 3
	fuseOpen, fuseRead, fuseRelease           = 14, 15, 18
	fuseFlush, fuseInit, fuseAccess           = 25, 26, 34
	fuseInterrupt, fuseDestroy, fuseForgetAll = 36, 38, 42
	fuseRoot                                  = 1
)

// NewMount mounts a file system that has the given files in its root. The file system
// is unmounted when the test ends.
func NewMount(t testing.TB, files map[string][]byte) *Mount {
	t.Helper()
	m := &Mount{Dir: t.TempDir(), names: make(map[string]uint64), done: make(chan struct{})}
	for name, content := range files {
		m.files = append(m.files, content)
		m.names[name] = uint64(len(m.files)) + fuseRoot
	}
	var err error
	if m.device, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		SkipUnprivileged(t, "cannot open /dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", m.device)
	if err := unix.Mount("test", m.Dir, "fuse", 0, options); err != nil {
		_ = unix.Close(m.device)
		SkipUnprivileged(t, "cannot mount a file system of FUSE: %v", err)
	}
	go m.serve()
	t.Cleanup(m.Abort)
	return m
}

// Abort unmounts the file system. All waiting calls return an error.
func (m *Mount) Abort() {
	m.mu.Lock()
	aborted := m.device < 0
	device := m.device
	m.device = -1
	m.mu.Unlock()
	if aborted {
		return
	}
	_ = unix.Unmount(m.Dir, unix.MNT_FORCE|unix.MNT_DETACH) // this also makes serve return
	<-m.done
	_ = unix.Close(device)
}

// Stop makes the file system stop answering requests.
func (m *Mount) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent, m.asked = true, 0
}

// StopAfterFailing makes the next n reads fail. Afterwards, the file
// system does not answer requests.
func (m *Mount) StopAfterFailing(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent, m.asked, m.failed = true, 0, n
}

// Go makes the file system answer again. It also answers the requests
// that have arrived in the meantime.
func (m *Mount) Go() {
	m.mu.Lock()
	m.silent = false
	held := m.held
	m.held = nil
	m.mu.Unlock()
	for _, request := range held {
		m.answer(request)
	}
}

// Asked returns the number of requests that are waiting for an answer.
func (m *Mount) Asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func (m *Mount) serve() {
	defer close(m.done)
	device := m.device
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(device, buf)
		if err == unix.EINTR || err == unix.ENOENT || err == unix.EAGAIN {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		request := append([]byte(nil), buf[:n]...)
		m.mu.Lock()
		op := binary.NativeEndian.Uint32(request[4:])
		hold := m.silent && op != fuseForget && op != fuseForgetAll && op != fuseInterrupt && op != fuseDestroy
		fail := hold && op == fuseRead && m.failed > 0
		switch {
		case fail:
			m.failed--
			hold = false
		case hold && m.failed > 0:
			hold = false // answer other requests until n reads have failed
		case hold:
			m.asked++
			m.held = append(m.held, request)
		}
		m.mu.Unlock()
		switch {
		case fail:
			m.reply(request, unix.EIO, nil)
		case !hold:
			m.answer(request)
		}
	}
}

func (m *Mount) reply(request []byte, errno unix.Errno, body []byte) {
	out := make([]byte, 16, 16+len(body))
	binary.NativeEndian.PutUint32(out, uint32(16+len(body)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
	copy(out[8:16], request[8:16]) // the request's number
	m.mu.Lock()
	device := m.device
	m.mu.Unlock()
	if device >= 0 {
		_, _ = unix.Write(device, append(out, body...)) // the caller may no longer exist
	}
}

func (m *Mount) answer(request []byte) {
	ne := binary.NativeEndian
	node, body := ne.Uint64(request[16:]), request[40:]
	switch ne.Uint32(request[4:]) {
	case fuseInit:
		out := make([]byte, 64)
		ne.PutUint32(out, 7)
		ne.PutUint32(out[4:], 31)
		ne.PutUint32(out[20:], 4096) // maximum size of a write
		m.reply(request, 0, out)
	case fuseLookup:
		id, ok := m.names[string(body[:len(body)-1])]
		if !ok {
			m.reply(request, unix.ENOENT, nil)
			return
		}
		out := make([]byte, 40, 128)
		ne.PutUint64(out, id)
		m.reply(request, 0, append(out, m.attributes(id)...))
	case fuseGetattr:
		m.reply(request, 0, append(make([]byte, 16), m.attributes(node)...))
	case fuseOpen:
		m.reply(request, 0, make([]byte, 16))
	case fuseRead:
		content := m.files[node-fuseRoot-1]
		from := min(ne.Uint64(body[8:]), uint64(len(content)))
		to := min(from+uint64(ne.Uint32(body[16:])), uint64(len(content)))
		m.reply(request, 0, content[from:to])
	case fuseRelease, fuseFlush, fuseAccess, fuseDestroy:
		m.reply(request, 0, nil)
	case fuseForget, fuseForgetAll, fuseInterrupt: // these requests have no answer
	default:
		m.reply(request, unix.ENOSYS, nil)
	}
}

func (m *Mount) attributes(node uint64) []byte {
	ne := binary.NativeEndian
	out := make([]byte, 88)
	ne.PutUint64(out, node)
	mode := uint32(unix.S_IFDIR | 0o755)
	if node != fuseRoot {
		mode = unix.S_IFREG | 0o755
		ne.PutUint64(out[8:], uint64(len(m.files[node-fuseRoot-1])))
	}
	ne.PutUint32(out[60:], mode)
	ne.PutUint32(out[64:], 1)
	ne.PutUint32(out[80:], 4096)
	return out
}
