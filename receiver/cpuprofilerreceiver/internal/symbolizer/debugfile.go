// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

const (
	debugRoot = "/usr/lib/debug"
	// maxDebugFile is the maximum size of a file whose checksum is computed.
	maxDebugFile = 1 << 30
	// maxMiniDebugInfo is the maximum size of the compressed symbols in a file.
	// maxMiniSymbols is the maximum size of the decompressed symbols. The
	// largest programs of a distribution have 3 MiB of compressed symbols, which
	// are 15 MiB after decompression.
	maxMiniDebugInfo = 16 << 20
	maxMiniSymbols   = 64 << 20
)

// symbolFile is an ELF file with the symbols that were stripped from another file.
type symbolFile struct {
	f    *elffile.File
	id   mappedfile.ID
	file *mappedfile.Reader // nil if f is in memory
}

// debugFileOf finds the debug file of o in the root directory of m's process. It searches
// by build id, then by the name and checksum in .gnu_debuglink. It returns nil if there is
// no debug file, and an error if the search failed. known reports whether a file is already
// known to be the debug file of o.
func debugFileOf(c *stuckread.Call, root string, m *samples.Mapping, o *object, known func(mappedfile.ID) bool) (*symbolFile, error) {
	type candidate struct {
		name string
		sum  *uint32
	}
	var candidates []candidate
	if id := o.buildID; len(id) > 2 {
		candidates = append(candidates, candidate{name: fmt.Sprintf("%s/.build-id/%s/%s.debug", debugRoot, id[:2], id[2:])})
	}
	if name, sum, ok := debugLink(o.f); ok && strings.HasPrefix(m.Path, "/") {
		dir := path.Dir(m.Path)
		for _, in := range []string{dir, path.Join(dir, ".debug"), path.Join(debugRoot, dir)} {
			candidates = append(candidates, candidate{path.Join(in, name), &sum})
		}
	}
	var unsure error
	for _, of := range candidates {
		if of.name == m.Path {
			continue // the link names its own file
		}
		d, err := tryDebugFile(c, root, m, of.name, o, of.sum, known)
		if d != nil {
			return d, nil
		}
		unsure = cmp.Or(unsure, err)
	}
	return nil, unsure
}

// tryDebugFile opens a file if it is the debug file of o. If sum is nil, the build ids must
// be equal. Otherwise the checksums must be equal, and the build ids must not differ. An
// error means that the existence of the debug file is unknown.
func tryDebugFile(c *stuckread.Call, root string, m *samples.Mapping, name string, o *object, sum *uint32, known func(mappedfile.ID) bool) (*symbolFile, error) {
	opened, fileID, err := mappedfile.OpenRegular(c, root, m.PID, m.Root, name)
	switch {
	case mappedfile.IsNone(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	file := mappedfile.NewReader(opened, mappedfile.Opening(m), name)
	file.Use(c)
	d := &symbolFile{id: fileID, file: file}
	if d.f, err = elffile.Parse(file, fileID.Size); err == nil {
		if known(fileID) {
			return d, nil
		}
		id, _ := d.f.BuildIDs()
		if sum == nil && id == o.buildID ||
			sum != nil && (id == o.buildID || id == "" || o.buildID == "") && checksum(file, fileID.Size) == *sum {
			return d, nil
		}
	}
	file.Close()
	return nil, nil
}

// checksum returns the checksum of a file as .gnu_debuglink defines it. It returns 0 if the
// file is too large or not readable.
func checksum(file io.ReaderAt, size int64) uint32 {
	if size > maxDebugFile {
		return 0
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, size)); err != nil {
		return 0
	}
	return sum.Sum32()
}

// debugLink returns the name and the checksum in .gnu_debuglink.
func debugLink(f *elffile.File) (name string, sum uint32, ok bool) {
	s, ok := f.Section(".gnu_debuglink")
	if !ok {
		return "", 0, false
	}
	const most = 1 << 10
	b, ok := f.Contents(s, most)
	if !ok {
		return "", 0, false
	}
	end := bytes.IndexByte(b, 0)
	at := (end + 4) &^ 3
	if end <= 0 || at+4 > len(b) {
		return "", 0, false
	}
	name = string(b[:end])
	if name == "." || name == ".." || strings.Contains(name, "/") {
		return "", 0, false
	}
	return name, binary.LittleEndian.Uint32(b[at:]), true
}

// miniDebugInfo decompresses the ELF file in .gnu_debugdata. It returns nil if f has no
// such section.
func miniDebugInfo(f *elffile.File, limit int64) (*symbolFile, error) {
	s, ok := f.Section(".gnu_debugdata")
	if !ok {
		return nil, nil
	}
	packed, ok := f.Contents(s, maxMiniDebugInfo)
	if !ok {
		return nil, fmt.Errorf(".gnu_debugdata of %d bytes is not readable", s.Size)
	}
	b, err := unxz(packed, int(min(limit, maxMiniSymbols)))
	if err != nil {
		return nil, fmt.Errorf("reading .gnu_debugdata: %w", err)
	}
	d, err := elffile.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, fmt.Errorf("reading .gnu_debugdata: %w", err)
	}
	return &symbolFile{f: d}, nil
}

// isStripped reports whether a file has sections but no .symtab. The .symtab may then be in
// a debug file.
func isStripped(f *elffile.File) bool {
	for _, s := range f.Sections {
		if s.Kind == elf.SHT_SYMTAB {
			return false
		}
	}
	return len(f.Sections) > 0
}

// keep copies the table into memory, so that the file of the table can be freed. It
// returns an error if the table has more than limit bytes.
func (t *stringTable) keep(limit int64) error {
	b, ok := t.f.Contents(t.section, uint64(max(limit, 0)))
	if !ok {
		return errTooLarge
	}
	t.f = elffile.New(bytes.NewReader(b), int64(len(b)))
	t.section.Offset = 0
	t.held = int64(len(b))
	return nil
}
