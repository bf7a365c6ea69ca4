// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package tracefs reads tracepoint ids and the layout of tracepoint records from the
// kernel's tracefs. The ids and the layouts differ between kernels.
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

// maxFile is the maximum number of bytes read from a file. The largest format file is
// about 8 KiB long.
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

// Tracepoint reads the tracepoint called name, such as sock:sock_send_length. id
// is the number that identifies the tracepoint in perf events. found contains the
// wanted fields in the same order. If the kernel does not have the tracepoint,
// the error matches os.ErrNotExist.
func (f FS) Tracepoint(name string, wanted ...string) (id uint64, found []Field, err error) {
	folder := filepath.Join(f.events, strings.Replace(name, ":", "/", 1))
	number, err := read(filepath.Join(folder, "id"))
	if err != nil {
		return 0, nil, err
	}
	format, err := read(filepath.Join(folder, "format"))
	if err != nil {
		return 0, nil, err
	}
	if id, err = strconv.ParseUint(string(bytes.TrimSpace(number)), 10, 32); err != nil {
		return 0, nil, fmt.Errorf("the id of %s: %w", name, err)
	}
	fields, err := parseFormat(format)
	if err != nil {
		return 0, nil, fmt.Errorf("the format of %s: %w", name, err)
	}
	for _, field := range wanted {
		of, ok := fields[field]
		if !ok {
			return 0, nil, fmt.Errorf("tracepoint %d has no field %s", id, field)
		}
		found = append(found, of)
	}
	return id, found, nil
}

func read(path string) ([]byte, error) {
	content, err := procfs.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrPermission) {
		return nil, denied(path, err)
	}
	return content, err
}

// Field is the byte range of one value in a record.
type Field struct {
	Offset, Size int
	Signed       bool
}

// Int returns the value of an integer field in a record. It returns false if the record is
// too short or the field is not an integer.
func (f Field) Int(record []byte) (int64, bool) {
	b, _ := f.Bytes(record)
	var n uint64
	switch len(b) {
	case 1:
		n = uint64(b[0])
	case 2:
		n = uint64(binary.NativeEndian.Uint16(b))
	case 4:
		n = uint64(binary.NativeEndian.Uint32(b))
	case 8:
		n = binary.NativeEndian.Uint64(b)
	default:
		return 0, false
	}
	if unused := 64 - 8*len(b); f.Signed {
		return int64(n<<unused) >> unused, true
	}
	return int64(n), true
}

// Bytes returns the field's bytes in a record. It returns false if the record is too short.
func (f Field) Bytes(record []byte) ([]byte, bool) {
	if f.Size <= 0 || f.Offset < 0 || f.Offset > len(record) || f.Size > len(record)-f.Offset {
		return nil, false
	}
	return record[f.Offset : f.Offset+f.Size], true
}

// maxOffset is greater than the offset of any field, because the size of a record is a
// 16-bit number.
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
		declaration, layout, _ := strings.Cut(declared, ";")
		var f Field
		_, err := fmt.Sscanf(layout, " offset:%d; size:%d; signed:%t;", &f.Offset, &f.Size, &f.Signed)
		if err != nil || min(f.Offset, f.Size) < 0 || max(f.Offset, f.Size) >= maxOffset {
			return nil, fmt.Errorf("%q has no offset and size below %d, or does not say whether it is signed", line, maxOffset)
		}
		declaration, _, _ = strings.Cut(declaration, "[")
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
