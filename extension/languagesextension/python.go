// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"errors"
	"fmt"
	"path"
	"strings"

	ebpfinterpreter "go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

// These constants limit the supported minor versions of Python 3.
const (
	oldestPython = 8
	newestPython = 14
)

func isPython(file string) bool {
	name := path.Base(file)
	return strings.HasPrefix(name, "python3") || strings.HasPrefix(name, "libpython3") || name == "python"
}

// pythonLayout returns the layout of the data structures of a Python interpreter.
func pythonLayout(l *loaded[support.PyProcInfo]) (*interpreter.Python, error) {
	c, err := findThreads(l.process)
	if err != nil {
		return nil, err
	}
	_, err = l.attach(l.process.Memory, func(instance ebpfinterpreter.Instance) error {
		return instance.UpdateLibcInfo(&l.tables, libpf.PID(l.process.PID), c.LibcInfo)
	})
	if err != nil {
		return nil, err
	}
	info := l.info
	if info.Version < 0x300+oldestPython || info.Version > 0x300+newestPython {
		return nil, fmt.Errorf("Python %d.%d is not known: 3.%d to 3.%d are", info.Version>>8, info.Version&0xff, oldestPython, newestPython)
	}
	loop, err := l.loop()
	if err != nil {
		return nil, err
	}
	is := &interpreter.Python{
		Minor: int(info.Version & 0xff), Loop: loop,
		ThreadID: c.id,
		StateTLS: int64(info.Tls_offset),
		TSD:      int64(c.TSDInfo.Offset), TSDSize: uint64(c.TSDInfo.Multiplier), TSDIndirect: c.TSDInfo.Indirect != 0,
		StateKey:   info.AutoTLSKeyAddr,
		StateFrame: uint64(info.PyThreadState_frame),
		CFrame:     info.Frame_is_cframe != 0, CFrameCurrent: uint64(info.PyCFrame_current_frame),
		FrameBack: uint64(info.PyFrameObject_f_back), FrameCode: uint64(info.PyFrameObject_f_code), FrameLast: uint64(info.PyFrameObject_f_lasti),
		FrameEntry: uint64(info.PyFrameObject_entry_member), FrameEntryIs: info.PyFrameObject_entry_val,
	}
	// Python does not publish these offsets as members of the type.
	switch {
	case is.Minor <= 9:
		is.FrameLast = 104
	case is.Minor == 10:
		is.FrameLast = 96
	}
	code, err := l.LookupSymbolAddress("PyCode_Type")
	if err != nil {
		return nil, err
	}
	at := libpf.Address(uint64(code) + l.bias)
	m := remotememory.RemoteMemory{ReaderAt: l.process.Memory}
	const basicSize, members, member, memberOffset, maxMembers, maxSize = 32, 240, 40, 16, 64, 1024
	is.CodeType = uint64(at)
	is.CodeSize = m.Uint64(at + basicSize)
	table := m.Ptr(at + members)
	offsets := map[string]uint64{}
	for i := range libpf.Address(maxMembers) {
		name := m.StringPtr(table + i*member)
		if name == "" {
			break
		}
		offsets[name] = uint64(m.Uint32(table + i*member + memberOffset))
	}
	is.CodeFirstLine, is.CodeFile, is.CodeName = offsets["co_firstlineno"], offsets["co_filename"], offsets["co_name"]
	is.CodeQualifiedName, is.CodeLines = offsets["co_qualname"], offsets["co_linetable"]
	if is.Minor < 10 {
		is.CodeLines = offsets["co_lnotab"]
	}
	for _, offset := range []uint64{is.CodeFirstLine, is.CodeFile, is.CodeName, is.CodeLines} {
		if offset == 0 || offset+8 > is.CodeSize || is.CodeQualifiedName+8 > is.CodeSize || is.CodeSize > maxSize {
			return nil, errors.New("its code objects have an unknown layout")
		}
	}
	return is, nil
}
