// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

const (
	debugRoot = "/usr/lib/debug"
	// maxDebugFile bounds the file whose checksum is computed.
	maxDebugFile = 1 << 30
	// maxMiniDebugInfo bounds the compressed symbols in a file, maxMiniSymbols
	// what they are decompressed to. Those of the largest programs of a
	// distribution take 3 and 15 MiB.
	maxMiniDebugInfo = 16 << 20
	maxMiniSymbols   = 64 << 20
)

// symbolFile is an ELF file that holds the symbols which another one was
// stripped of.
type symbolFile struct {
	f      *elfFile
	closer io.Closer // nil where it is held in memory
}

// debugFileOf finds the file with the symbols that o was stripped of, among
// those installed where m's process sees them: by build id, else by the name and
// checksum that the file itself says. It returns nil where there is none.
func debugFileOf(root string, m *samples.Mapping, o *object) *symbolFile {
	if id := o.buildID; len(id) > 2 {
		if d := tryDebugFile(root, m.PID, fmt.Sprintf("%s/.build-id/%s/%s.debug", debugRoot, id[:2], id[2:]), o, nil); d != nil {
			return d
		}
	}
	name, sum, ok := o.f.debugLink()
	if !ok || !strings.HasPrefix(m.Path, "/") {
		return nil
	}
	dir := path.Dir(m.Path)
	for _, candidate := range []string{path.Join(dir, name), path.Join(dir, ".debug", name), path.Join(debugRoot, dir, name)} {
		if candidate == m.Path {
			continue // a file without symbols that names itself
		}
		if d := tryDebugFile(root, m.PID, candidate, o, &sum); d != nil {
			return d
		}
	}
	return nil
}

// tryDebugFile opens a file if it is o's: with the same build id, or, where sum
// is not nil, with that checksum and no other build id.
func tryDebugFile(root string, pid int, name string, o *object, sum *uint32) *symbolFile {
	file, size, err := openRegular(root, pid, name)
	if err != nil {
		return nil
	}
	d := &symbolFile{closer: file}
	if d.f, err = parseELF(file, size); err == nil {
		id, _ := d.f.buildIDs()
		if sum == nil && id == o.buildID ||
			sum != nil && (id == o.buildID || id == "" || o.buildID == "") && checksum(file, size) == *sum {
			return d
		}
	}
	file.Close()
	return nil
}

// checksum is what .gnu_debuglink says of a file; 0 for one that is too large.
func checksum(file *os.File, size int64) uint32 {
	if size > maxDebugFile {
		return 0
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, size)); err != nil {
		return 0
	}
	return sum.Sum32()
}

// debugLink is the name of the file with the symbols, and its checksum.
func (f *elfFile) debugLink() (name string, sum uint32, ok bool) {
	s, ok := f.section(".gnu_debuglink")
	if !ok {
		return "", 0, false
	}
	const most = 1 << 10
	b, ok := f.contents(s, most)
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

// miniDebugInfo decompresses the symbols of .gnu_debugdata. It returns nil where
// there are none.
func (f *elfFile) miniDebugInfo(limit int64) (*symbolFile, error) {
	s, ok := f.section(".gnu_debugdata")
	if !ok {
		return nil, nil
	}
	packed, ok := f.contents(s, maxMiniDebugInfo)
	if !ok {
		return nil, fmt.Errorf(".gnu_debugdata of %d bytes is not readable", s.size)
	}
	b, err := unxz(packed, int(min(limit, maxMiniSymbols)))
	if err != nil {
		return nil, fmt.Errorf("read .gnu_debugdata: %w", err)
	}
	d, err := parseELF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, fmt.Errorf("read .gnu_debugdata: %w", err)
	}
	return &symbolFile{f: d}, nil
}

// stripped says whether symbols are missing that may be elsewhere.
func (f *elfFile) stripped() bool {
	for _, s := range f.sections {
		if s.kind == elf.SHT_SYMTAB {
			return false
		}
	}
	return len(f.sections) > 0
}

// keep reads a string table of at most limit bytes into memory, in the place of
// the file that has it.
func (t *stringTable) keep(limit int64) error {
	b, ok := t.f.contents(t.section, uint64(max(limit, 0)))
	if !ok {
		return errTooLarge
	}
	t.f = &elfFile{r: bytes.NewReader(b), size: uint64(len(b))}
	t.section.offset = 0
	t.held = int64(len(b))
	return nil
}
