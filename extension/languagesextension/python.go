// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/interpreter/python"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

// The range of supported minor versions of Python 3.
const (
	oldestPython = 8
	newestPython = 13
)

func isPython(file string) bool {
	name := path.Base(file)
	return strings.HasPrefix(name, "python3") || strings.HasPrefix(name, "libpython3") || name == "python"
}

// attachPython reads the layout of Python from one of its files. It returns nil if another
// file contains the interpreter.
func attachPython(p interpreter.Process, i int) (*interpreter.Python, error) {
	o, err := open(p, i)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	var info *support.PyProcInfo
	to := into(libpf.Python, &info)
	data, err := load(python.GetLoader(python.Config{}), o, p.Mappings[i].Path, to)
	if err != nil || data == nil {
		return nil, err
	}
	instance, err := data.Attach(to, libpf.PID(p.PID), libpf.Address(o.bias), memory(p))
	if err != nil {
		return nil, err
	}
	c, err := findThreads(p)
	if err == nil {
		err = instance.UpdateLibcInfo(to, libpf.PID(p.PID), c.LibcInfo)
	}
	switch {
	case err != nil:
		return nil, err
	case info == nil:
		return nil, errors.New("its layout was not found")
	case info.Version < 0x300+oldestPython || info.Version > 0x300+newestPython:
		return nil, fmt.Errorf("Python %d.%d is not known: 3.%d to 3.%d are", info.Version>>8, info.Version&0xff, oldestPython, newestPython)
	case len(to.ranges) == 0:
		return nil, errNoLoop
	}
	return pythonLayout(p, o, info, to, c)
}

// pythonLayout builds the layout from the data that the library found.
func pythonLayout(p interpreter.Process, o *object, info *support.PyProcInfo, to *tables, c threads) (*interpreter.Python, error) {
	l := &interpreter.Python{
		Minor:    int(info.Version & 0xff),
		ThreadID: c.id,
		StateTLS: int64(info.Tls_offset),
		TSD:      int64(c.TSDInfo.Offset), TSDSize: uint64(c.TSDInfo.Multiplier), TSDIndirect: c.TSDInfo.Indirect != 0,
		StateKey:   info.AutoTLSKeyAddr,
		StateFrame: uint64(info.PyThreadState_frame),
		CFrame:     info.Frame_is_cframe != 0, CFrameCurrent: uint64(info.PyCFrame_current_frame),
		FrameBack: uint64(info.PyFrameObject_f_back), FrameCode: uint64(info.PyFrameObject_f_code), FrameLast: uint64(info.PyFrameObject_f_lasti),
		FrameEntry: uint64(info.PyFrameObject_entry_member), FrameEntryIs: info.PyFrameObject_entry_val,
	}
	for _, r := range to.ranges {
		l.Loop = append(l.Loop, interpreter.Range{Start: r.Start + o.bias, Limit: r.End + o.bias})
	}
	// Python does not publish these offsets as members of the type.
	switch {
	case l.Minor <= 9:
		l.FrameLast = 104
	case l.Minor == 10:
		l.FrameLast = 96
	}
	code, err := o.LookupSymbolAddress("PyCode_Type")
	if err != nil {
		return nil, err
	}
	at := libpf.Address(uint64(code) + o.bias)
	m := memory(p)
	const basicSize, members, member, memberOffset, maxMembers, maxSize = 32, 240, 40, 16, 64, 1024
	l.CodeType = uint64(at)
	l.CodeSize = m.Uint64(at + basicSize)
	table := m.Ptr(at + members)
	offsets := map[string]uint64{}
	for i := range libpf.Address(maxMembers) {
		name := m.StringPtr(table + i*member)
		if name == "" {
			break
		}
		offsets[name] = uint64(m.Uint32(table + i*member + memberOffset))
	}
	l.CodeFirstLine, l.CodeFile, l.CodeName = offsets["co_firstlineno"], offsets["co_filename"], offsets["co_name"]
	l.CodeQualifiedName, l.CodeLines = offsets["co_qualname"], offsets["co_linetable"]
	if l.Minor < 10 {
		l.CodeLines = offsets["co_lnotab"]
	}
	for _, offset := range []uint64{l.CodeFirstLine, l.CodeFile, l.CodeName, l.CodeLines} {
		if offset == 0 || offset+8 > l.CodeSize || l.CodeQualifiedName+8 > l.CodeSize || l.CodeSize > maxSize {
			return nil, errors.New("its code objects have an unknown layout")
		}
	}
	return l, nil
}
