// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
)

// MaxStatus is the maximum number of bytes read from a status file. A status file is about
// 1500 bytes long, plus 11 bytes for each group of the process's user. A user has at most
// 65536 groups.
const MaxStatus = 1 << 20

// A Status holds the fields of /proc/PID/status, or of a thread's status file, that callers
// need.
type Status struct {
	State byte // R, S, D, Z, …
	// PID is the process's id in the innermost pid namespace that contains the process.
	PID int
	// UIDs are the real, effective, saved and file system user ids.
	UIDs [4]uint32
	// Capabilities is the effective set. The number of each bit is defined in
	// linux/capability.h.
	Capabilities uint64
	// Switches is the number of times that the thread left its CPU, voluntarily or not.
	Switches uint64
}

// Status reads the status file of a process, at most [MaxStatus] bytes.
func (fs FS) Status(pid int) (Status, error) {
	return ParseFile(fs.File(pid, "status"), MaxStatus, ParseStatus)
}

// ParseStatus parses the content of a status file without allocating. State, Pid and
// Uid are required.
func ParseStatus(b []byte) (s Status, err error) {
	var state, uids bool
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "State":
			if state = len(value) > 0; state {
				s.State = value[0]
			}
		case "Pid", "NSpid": // in this order; kernels without pid namespaces have no NSpid
			s.PID, err = strconv.Atoi(string(value[bytes.LastIndexAny(value, " \t")+1:]))
			if s.PID <= 0 {
				err = ErrMalformed
			}
		case "Uid":
			n := 0
			for f := range bytes.FieldsSeq(value) {
				var id uint64
				if id, err = strconv.ParseUint(string(f), 10, 32); err != nil || n == len(s.UIDs) {
					return Status{}, ErrMalformed
				}
				s.UIDs[n] = uint32(id)
				n++
			}
			uids = n == len(s.UIDs)
		case "CapEff":
			s.Capabilities, err = strconv.ParseUint(string(value), 16, 64)
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			var n uint64
			n, err = strconv.ParseUint(string(value), 10, 64)
			s.Switches += n
		}
		if err != nil {
			return Status{}, ErrMalformed
		}
	}
	if !state || !uids || s.PID == 0 {
		return Status{}, ErrMalformed
	}
	return s, nil
}
