// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package tracefs reads tracepoint ids and the layout of tracepoint records from the
// kernel's tracefs. Both differ between kernels.
package tracefs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// folders are the mount points of tracefs, the most common first.
var folders = [...]string{"sys/kernel/tracing", "sys/kernel/debug/tracing"}

// maxFile bounds the bytes read from a file. The largest format file has about 8 KiB.
const maxFile = 256 << 10

// ErrNotMounted is returned if no tracefs is found.
var ErrNotMounted = errors.New("tracefs is not mounted: run \"mount -t tracefs tracefs /sys/kernel/tracing\" on the host; in a container, mount the host's /sys/kernel/tracing below root_path")

// FS is a mounted tracefs.
type FS struct{ events string }

// Find returns the tracefs below root, the mount point of the host's root. The error
// matches os.ErrPermission if a tracefs exists but may not be read.
func Find(root string) (FS, error) {
	err := ErrNotMounted
	for _, folder := range folders {
		events := filepath.Join(root, folder, "events")
		_, statErr := os.Stat(events)
		if statErr == nil {
			return FS{events}, nil
		}
		if errors.Is(statErr, fs.ErrPermission) {
			err = denied(events, statErr)
		}
	}
	return FS{}, err
}

func denied(path string, err error) error {
	return fmt.Errorf("reading %s is not permitted: it needs CAP_DAC_READ_SEARCH, or tracefs mounted with a gid of this process: %w", path, err)
}

// Tracepoint is a tracepoint of the running kernel.
type Tracepoint struct {
	// ID is the number that identifies the tracepoint in perf events.
	ID     uint64
	fields map[string]Field
}

// Tracepoint reads the tracepoint of a name, such as sock:sock_send_length. If the kernel
// does not have the tracepoint, the error matches os.ErrNotExist.
func (f FS) Tracepoint(name string) (Tracepoint, error) {
	folder := filepath.Join(f.events, strings.Replace(name, ":", "/", 1))
	id, err := read(filepath.Join(folder, "id"))
	if err != nil {
		return Tracepoint{}, err
	}
	format, err := read(filepath.Join(folder, "format"))
	if err != nil {
		return Tracepoint{}, err
	}
	t := Tracepoint{}
	if t.ID, err = strconv.ParseUint(string(bytes.TrimSpace(id)), 10, 32); err != nil {
		return t, fmt.Errorf("the id of %s: %w", name, err)
	}
	if t.fields, err = parseFormat(format); err != nil {
		return t, fmt.Errorf("the format of %s: %w", name, err)
	}
	return t, nil
}

func read(path string) ([]byte, error) {
	content, err := procfs.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrPermission) {
		return nil, denied(path, err)
	}
	return content, err
}

// Fields returns the named fields, in the order of names.
func (t Tracepoint) Fields(names ...string) ([]Field, error) {
	fields := make([]Field, len(names))
	for i, name := range names {
		f, ok := t.fields[name]
		if !ok {
			return nil, fmt.Errorf("tracepoint %d has no field %s", t.ID, name)
		}
		fields[i] = f
	}
	return fields, nil
}

// Field is the byte range of one value in a record.
type Field struct {
	Offset, Size int
	Signed       bool
}

// Int returns the value of an integer field in a record. It returns false if the record is
// too short or the field is not an integer.
func (f Field) Int(record []byte) (int64, bool) {
	b, ok := f.Bytes(record)
	if !ok {
		return 0, false
	}
	switch f.Size {
	case 1:
		if f.Signed {
			return int64(int8(b[0])), true
		}
		return int64(b[0]), true
	case 2:
		n := binary.NativeEndian.Uint16(b)
		if f.Signed {
			return int64(int16(n)), true
		}
		return int64(n), true
	case 4:
		n := binary.NativeEndian.Uint32(b)
		if f.Signed {
			return int64(int32(n)), true
		}
		return int64(n), true
	case 8:
		return int64(binary.NativeEndian.Uint64(b)), true
	}
	return 0, false
}

// Bytes returns the field's bytes in a record. It returns false if the record is too short.
func (f Field) Bytes(record []byte) ([]byte, bool) {
	if f.Size <= 0 || f.Offset < 0 || f.Offset > len(record) || f.Size > len(record)-f.Offset {
		return nil, false
	}
	return record[f.Offset : f.Offset+f.Size], true
}

// maxOffset is above the end of every record, because the size of a record has 16 bits.
const maxOffset = 1 << 16

// parseFormat parses a tracepoint's format file. The line of a field looks like this:
//
//	field:int ret;	offset:20;	size:4;	signed:1;
//
// The declaration may be an array, such as __u8 saddr[4].
func parseFormat(text []byte) (map[string]Field, error) {
	fields := make(map[string]Field)
	for line := range strings.Lines(string(text)) {
		declared, ok := strings.CutPrefix(strings.TrimSpace(line), "field:")
		if !ok {
			continue
		}
		var f Field
		parts := strings.Split(declared, ";")
		for _, part := range parts[1:] {
			key, value, _ := strings.Cut(strings.TrimSpace(part), ":")
			if key == "" {
				continue
			}
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n >= maxOffset {
				return nil, fmt.Errorf("%q: %s is not a number below %d", line, key, maxOffset)
			}
			switch key {
			case "offset":
				f.Offset = n
			case "size":
				f.Size = n
			case "signed":
				f.Signed = n != 0
			}
		}
		declaration, _, _ := strings.Cut(parts[0], "[")
		words := strings.Fields(declaration)
		if len(words) < 2 {
			return nil, fmt.Errorf("%q declares no field", line)
		}
		fields[strings.TrimLeft(words[len(words)-1], "*")] = f
	}
	if len(fields) == 0 {
		return nil, errors.New("it has no field")
	}
	return fields, nil
}
