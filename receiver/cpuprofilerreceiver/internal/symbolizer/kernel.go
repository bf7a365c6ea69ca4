// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer/perfmap"
)

const (
	maxKernelSymbols = 1 << 21
	maxKallsymsBytes = 256 << 20
	// maxKernelFunction is the assumed maximum size of a function before a gap,
	// because kallsyms contains no sizes.
	maxKernelFunction = 1 << 20
	noName            = 1<<32 - 1
)

// errHidden means that kallsyms shows all addresses as zero.
var errHidden = errors.New("/proc/kallsyms shows no addresses: kernel functions stay without names; " +
	"CAP_SYSLOG, or kernel.kptr_restrict=0 with kernel.perf_event_paranoid of at most 1, would show them")

// kernelSymbols holds the functions of the kernel and its modules from /proc/kallsyms.
type kernelSymbols struct {
	// addrs is sorted. For each address, names contains the offset of a line in text. A
	// line is a name, optionally followed by a tab and the module in brackets. The value
	// noName marks the start of data.
	addrs   []uint64
	names   []uint32
	text    []byte
	buildID string
}

type kernelSymbol struct {
	addr uint64
	name uint32
	rank uint8
}

// readKernelSymbols reads kallsyms.
func readKernelSymbols(r io.Reader) (*kernelSymbols, error) {
	k := &kernelSymbols{}
	var found []kernelSymbol
	lines := bufio.NewScanner(io.LimitReader(r, maxKallsymsBytes))
	for lines.Scan() {
		addr, kind, name, ok := parseKallsyms(lines.Bytes())
		if !ok || addr == 0 {
			continue
		}
		if len(found) == maxKernelSymbols || len(k.text)+len(name)+1 >= noName {
			return nil, fmt.Errorf("more than %d kernel symbols", maxKernelSymbols)
		}
		s := kernelSymbol{addr: addr, name: noName}
		if s.rank = kernelRank(kind); s.rank > 0 {
			s.name = uint32(len(k.text))
			k.text = append(append(double(k.text), name...), '\n')
		}
		found = append(double(found), s)
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, fmt.Errorf("reading kallsyms: %w", err)
	case len(found) == 0:
		return nil, errHidden
	}
	slices.SortStableFunc(found, func(a, b kernelSymbol) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(b.rank, a.rank))
	})
	k.addrs, k.names = make([]uint64, 0, len(found)), make([]uint32, 0, len(found))
	for i, s := range found {
		n := len(k.addrs)
		if n > 0 && k.addrs[n-1] == s.addr {
			if s.rank > 0 && s.rank == found[i-1].rank && betterAlias(k.at(s.name), k.at(k.names[n-1])) {
				k.names[n-1] = s.name
			}
			continue
		}
		if s.name == noName && (n == 0 || k.names[n-1] == noName) {
			continue // one mark per range of data is enough
		}
		k.addrs = append(k.addrs, s.addr)
		k.names = append(k.names, s.name)
	}
	// Unlike the slices, their clones have no spare capacity.
	k.addrs, k.names, k.text = slices.Clone(k.addrs), slices.Clone(k.names), slices.Clone(k.text)
	return k, nil
}

// double doubles the capacity of a slice that is almost full. append alone would grow large
// slices by a quarter, which leaves several times their size as garbage.
func double[S ~[]E, E any](s S) S {
	if cap(s)-len(s) < 512 {
		s = slices.Grow(s, max(cap(s), 4096))
	}
	return s
}

// parseKallsyms splits a line into address, type and name. name includes the module.
func parseKallsyms(line []byte) (addr uint64, kind byte, name []byte, ok bool) {
	addr, line, ok = perfmap.Hex(line)
	if !ok || len(line) < 3 || line[1] != ' ' {
		return 0, 0, nil, false
	}
	return addr, line[0], line[2:], true
}

// kernelRank orders the names of one address. The name with the highest rank is shown. The
// rank of data is 0.
func kernelRank(kind byte) uint8 {
	switch kind {
	case 'T':
		return 3
	case 'W', 'w':
		return 2
	case 't':
		return 1
	}
	return 0
}

func (k *kernelSymbols) at(name uint32) string {
	rest := k.text[name:]
	return string(rest[:bytes.IndexByte(rest, '\n')])
}

func (k *kernelSymbols) bytes() int64 {
	return int64(cap(k.addrs))*8 + int64(cap(k.names))*4 + int64(cap(k.text))
}

// lines returns the function at pc. The module is part of the displayed name.
func (k *kernelSymbols) lines(pc uint64) []samples.Line {
	i, exact := slices.BinarySearch(k.addrs, pc)
	if !exact {
		i--
	}
	if i < 0 || k.names[i] == noName || pc-k.addrs[i] >= maxKernelFunction {
		return nil
	}
	name, module, inModule := strings.Cut(k.at(k.names[i]), "\t")
	line := samples.Line{Function: name}
	if inModule {
		line.Function, line.SystemName = name+" "+module, name
	}
	return []samples.Line{line}
}

// loadKernelSymbols reads the kernel's symbols and build id. root is the directory
// where the host's root is mounted.
func loadKernelSymbols(root string) (*kernelSymbols, error) {
	f, err := openKallsyms(root)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k, err := readKernelSymbols(f)
	if err != nil {
		return nil, err
	}
	if notes, err := procfs.ReadFile(filepath.Join(root, "sys/kernel/notes"), elffile.MaxNotes); err == nil {
		k.buildID, _ = elffile.ParseNotes(notes)
	}
	return k, nil
}

func openKallsyms(root string) (*os.File, error) {
	f, err := os.Open(procfs.At(root).Path("kallsyms"))
	if err != nil {
		return nil, fmt.Errorf("kernel functions stay without names: %w", err)
	}
	return f, nil
}

// kernelSymbolsShown returns an error if kallsyms shows no addresses. It reads only the
// start of kallsyms.
func kernelSymbolsShown(root string) error {
	f, err := openKallsyms(root)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, elffile.ChunkSize))
	for lines.Scan() {
		if addr, kind, _, ok := parseKallsyms(lines.Bytes()); ok && addr != 0 && kernelRank(kind) > 0 {
			return nil
		}
	}
	return errHidden
}
