// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// The most that is read of each file of procfs. What is longer is cut off, and
// counted.
const (
	maxStatus  = 64 << 10
	maxComm    = 256
	maxCgroup  = 64 << 10
	maxEnviron = 128 << 10
	maxMaps    = 8 << 20
	maxBoot    = 4 << 20
)

// procFiles reads files below /proc of the host whose root is mounted at root. It
// reads into memory of its own: what it returns is valid until the next call.
type procFiles struct {
	root string
	buf  []byte
}

func newProcFiles(root string) *procFiles {
	if root == "" {
		root = "/"
	}
	return &procFiles{root: filepath.Join(root, "proc"), buf: make([]byte, 4096)}
}

// dir is the directory of a process.
func (fs *procFiles) dir(pid int) string { return fs.root + "/" + strconv.Itoa(pid) }

// read returns up to limit bytes of a file; cut says that there was more.
func (fs *procFiles) read(path string, limit int) (content []byte, cut bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	n := 0
	for {
		if n == len(fs.buf) {
			if n > limit {
				return fs.buf[:limit], true, nil
			}
			fs.buf = append(fs.buf, make([]byte, len(fs.buf))...)
		}
		m, err := f.Read(fs.buf[n:])
		n += m
		if errors.Is(err, io.EOF) {
			if n > limit {
				return fs.buf[:limit], true, nil
			}
			return fs.buf[:n], false, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// trim gives back memory that one large file took.
func (fs *procFiles) trim() {
	if len(fs.buf) > 256<<10 {
		fs.buf = make([]byte, 4096)
	}
}

// stat is what /proc/PID/stat says, with the name as text.
type stat struct {
	procfs.Stat
	name string
}

// stat reads /proc/PID/stat.
func (fs *procFiles) stat(pid int) (stat, error) {
	b, _, err := fs.read(fs.dir(pid)+"/stat", procfs.MaxStat)
	if err != nil {
		return stat{}, err
	}
	s, err := procfs.ParseStat(b)
	if err != nil {
		return stat{}, err
	}
	out := stat{Stat: s, name: text(s.Comm, maxComm)}
	out.Comm = nil // it is in the memory of the next read
	return out, nil
}

// executable is the path of the program that a process runs, as the process
// sees it; empty for a kernel thread.
func (fs *procFiles) executable(pid int) (string, error) {
	path, err := os.Readlink(fs.dir(pid) + "/exe")
	if err != nil {
		return "", err
	}
	return text([]byte(strings.TrimSuffix(path, " (deleted)")), maxValue), nil
}

// threadName reads the name of a thread.
func (fs *procFiles) threadName(pid, tid int) (string, error) {
	b, _, err := fs.read(fs.dir(pid)+"/task/"+strconv.Itoa(tid)+"/comm", maxComm)
	if err != nil {
		return "", err
	}
	return text(trimNewline(b), maxComm), nil
}

// boot is when the host booted, to the second, as everyone who asks this kernel
// gets it.
func (fs *procFiles) boot() (time.Time, error) {
	b, _, err := fs.read(fs.root+"/stat", maxBoot)
	if err != nil {
		return time.Time{}, fmt.Errorf("find out when the host booted: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("find out when the host booted: %w", err)
			}
			return time.Unix(seconds, 0).UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("find out when the host booted: %s/stat has no line btime", fs.root)
}

// pids lists the processes that are there now.
func (fs *procFiles) pids() ([]int, error) {
	d, err := os.Open(fs.root)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isDenied says whether a right is missing, as opposed to the process having
// ended.
func isDenied(err error) bool { return errors.Is(err, os.ErrPermission) }
