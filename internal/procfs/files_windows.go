// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// HasFiles reports whether information about processes is read from files. On
// Windows, it comes from system calls.
const HasFiles = false

const (
	// maxList is the maximum size of the list of processes in bytes. A process takes
	// about 200 bytes, plus 80 bytes for each thread.
	maxList = 256 << 20

	// unixEpoch is the start of 1970 in Windows time. Windows time counts steps of 100 ns
	// since the start of 1601.
	unixEpoch = 116444736000000000

	stillActive = 259 // the exit code of a process that runs
)

var list struct {
	sync.Mutex
	buf []byte
}

// List returns all processes with one call, which needs no special rights. Opening each
// process would take longer, and would fail for processes of other users.
func List() (all []Listed, err error) {
	list.Lock()
	defer list.Unlock()
	for size := uint32(max(len(list.buf), 256<<10)); ; {
		if uint32(len(list.buf)) < size {
			list.buf = make([]byte, size)
		}
		err := windows.NtQuerySystemInformation(windows.SystemProcessInformation, unsafe.Pointer(&list.buf[0]), uint32(len(list.buf)), &size)
		if err == nil {
			break
		}
		if size += size / 8; !errors.Is(err, windows.STATUS_INFO_LENGTH_MISMATCH) || size > maxList {
			return nil, fmt.Errorf("list the processes (NtQuerySystemInformation): %w", err)
		}
	}
	for at := uint32(0); ; {
		p := (*windows.SYSTEM_PROCESS_INFORMATION)(unsafe.Pointer(&list.buf[at]))
		if p.UniqueProcessID != 0 { // the process 0 stands for idle CPUs
			all = append(all, Listed{
				Process: Process{PID: int(p.UniqueProcessID), Start: uint64(max(0, p.CreateTime-unixEpoch)) / uint64(Tick/100)},
				Name:    p.ImageName.String(), PPID: int(p.InheritedFromUniqueProcessID),
				Used: time.Duration(p.UserTime+p.KernelTime) * 100, Threads: int(p.NumberOfThreads), Resident: uint64(p.WorkingSetSize),
			})
		}
		if p.NextEntryOffset == 0 {
			return all, nil
		}
		at += p.NextEntryOffset
	}
}

// Stat returns the entry of a process from the list of processes.
func (FS) Stat(pid int) (Stat, error) {
	all, err := List()
	if err != nil {
		return Stat{}, err
	}
	n := slices.IndexFunc(all, func(p Listed) bool { return p.PID == pid })
	if n < 0 {
		return Stat{}, fmt.Errorf("find process %d: %w", pid, fs.ErrNotExist)
	}
	p := all[n]
	return Stat{Comm: []byte(p.Name), PPID: p.PPID, Threads: p.Threads, Start: p.Start}, nil
}

// PIDs returns the pids of all processes.
func (FS) PIDs() (pids []int, err error) {
	all, err := List()
	for _, p := range all {
		pids = append(pids, p.PID)
	}
	return pids, err
}

// Executable returns the path of the program that a process runs.
func (FS) Executable(pid int) (path string, err error) {
	err = withProcess(pid, func(h windows.Handle) error {
		name := make([]uint16, windows.MAX_LONG_PATH)
		n := uint32(len(name))
		err := windows.QueryFullProcessImageName(h, 0, &name[0], &n)
		path = windows.UTF16ToString(name[:n])
		return err
	})
	return path, err
}

var processAffinityMask = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetProcessAffinityMask")

// CPUs returns the number of CPUs that a process may use.
func CPUs(pid int) (n int, err error) {
	err = withProcess(pid, func(h windows.Handle) error {
		var process, system uintptr
		ok, _, err := processAffinityMask.Call(uintptr(h), uintptr(unsafe.Pointer(&process)), uintptr(unsafe.Pointer(&system)))
		if ok == 0 {
			return err
		}
		if n = bits.OnesCount64(uint64(process)); n == 0 { // the process uses several groups of CPUs
			n = OnlineCPUs()
		}
		return nil
	})
	return n, err
}

// OnlineCPUs returns the number of online CPUs of the host.
func OnlineCPUs() int { return int(windows.GetActiveProcessorCount(windows.ALL_PROCESSOR_GROUPS)) }

// withProcess opens a process for queries, and calls use.
func withProcess(pid int, use func(windows.Handle) error) error {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	var code uint32
	if err == nil {
		defer func() { _ = windows.CloseHandle(h) }()
		err = errors.Join(windows.GetExitCodeProcess(h, &code), use(h))
	}
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) || err == nil && code != stillActive {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("ask Windows about process %d: %w", pid, err)
	}
	return nil
}
