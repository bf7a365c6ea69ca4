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
)

// The most that is read of each file of procfs. What is longer is cut off, and
// counted.
const (
	maxStat    = 4 << 10
	maxStatus  = 64 << 10
	maxComm    = 256
	maxCgroup  = 64 << 10
	maxEnviron = 128 << 10
	maxMaps    = 8 << 20
	maxBoot    = 4 << 20
)

// procfs reads files below /proc of the host whose root is mounted at root. It
// reads into memory of its own: what it returns is valid until the next call.
type procfs struct {
	root string
	buf  []byte
}

func newProcfs(root string) *procfs {
	if root == "" {
		root = "/"
	}
	return &procfs{root: filepath.Join(root, "proc"), buf: make([]byte, 4096)}
}

// dir is the directory of a process.
func (fs *procfs) dir(pid int) string { return fs.root + "/" + strconv.Itoa(pid) }

// read returns up to limit bytes of a file; cut says that there was more.
func (fs *procfs) read(path string, limit int) (content []byte, cut bool, err error) {
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
func (fs *procfs) trim() {
	if len(fs.buf) > 256<<10 {
		fs.buf = make([]byte, 4096)
	}
}

// stat reads /proc/PID/stat.
func (fs *procfs) stat(pid int) (stat, error) {
	b, _, err := fs.read(fs.dir(pid)+"/stat", maxStat)
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// executable is the path of the program that a process runs, as the process
// sees it; empty for a kernel thread.
func (fs *procfs) executable(pid int) (string, error) {
	path, err := os.Readlink(fs.dir(pid) + "/exe")
	if err != nil {
		return "", err
	}
	return text([]byte(strings.TrimSuffix(path, " (deleted)")), maxValue), nil
}

// threadName reads the name of a thread.
func (fs *procfs) threadName(pid, tid int) (string, error) {
	b, _, err := fs.read(fs.dir(pid)+"/task/"+strconv.Itoa(tid)+"/comm", maxComm)
	if err != nil {
		return "", err
	}
	return text(trimNewline(b), maxComm), nil
}

// boot is when the host booted, to the second, as everyone who asks this kernel
// gets it.
func (fs *procfs) boot() (time.Time, error) {
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
func (fs *procfs) pids() ([]int, error) {
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
