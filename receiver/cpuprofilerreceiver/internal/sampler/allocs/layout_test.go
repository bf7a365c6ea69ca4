// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

func described(version string, machine elf.Machine, code ...byte) *goprogram.Program {
	f := &goprogram.Code{Address: 0x401000, Offset: 0x1000, Length: len(code)}
	copy(f.Code[:], code)
	return &goprogram.Program{Version: version, Machine: machine, Functions: []*goprogram.Code{f}}
}

func TestUnknownLayoutIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		machine elf.Machine
		host    string
	}{
		"older than what is known":   {"go1.21.13", elf.EM_X86_64, "amd64"},
		"newer than what is known":   {"go1.27", elf.EM_X86_64, "amd64"},
		"built from other sources":   {"devel go1.26-0123abc", elf.EM_X86_64, "amd64"},
		"a machine that is not":      {"go1.26", elf.EM_RISCV, "riscv64"},
		"a program of another kind":  {"go1.26", elf.EM_AARCH64, "amd64"},
		"32 bits on a host of 64":    {"go1.26", elf.EM_386, "amd64"},
		"a version that says naught": {"unknown", elf.EM_X86_64, "amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := siteOf(described(c.version, c.machine, 0x55), c.host)
			require.ErrorContains(t, err, "known are go1.22 to go1.26")
			require.ErrorContains(t, err, fmt.Sprintf("%q", c.version))
			require.NotErrorIs(t, err, errNoSampling)
			require.NotErrorIs(t, err, goprogram.ErrNotGo)
		})
	}
	p := described("go1.26", elf.EM_X86_64)
	p.Functions[0] = nil
	_, err := siteOf(p, "amd64")
	require.ErrorIs(t, err, errNoSampling)
}

func TestProbeIsBehindTheStackCheckWhereThereIsOne(t *testing.T) {
	check := []byte{0x49, 0x3b, 0x66, 0x10}
	with := func(more ...byte) []byte { return append(check[:4:4], more...) }
	arm64 := func(instructions ...uint32) (code []byte) {
		for _, i := range instructions {
			code = binary.LittleEndian.AppendUint32(code, i)
		}
		return code
	}
	for name, c := range map[string]struct {
		machine elf.Machine
		host    string
		code    []byte
		want    uint64
	}{
		"long jump":                 {elf.EM_X86_64, "amd64", with(0x0f, 0x86, 1, 2, 3, 4, 0x55, 0x48), 10},
		"short jump":                {elf.EM_X86_64, "amd64", with(0x76, 9, 0x55, 0x48), 6},
		"no push after it":          {elf.EM_X86_64, "amd64", with(0x76, 9, 0x48, 0x55), 0},
		"cut off":                   {elf.EM_X86_64, "amd64", with(0x76, 9), 0},
		"another jump":              {elf.EM_X86_64, "amd64", with(0x77, 9, 0x55), 0},
		"no check":                  {elf.EM_X86_64, "amd64", []byte{0x55, 0x48, 0x89, 0xe5}, 0},
		"empty":                     {elf.EM_X86_64, "amd64", nil, 0},
		"the same bytes on another": {elf.EM_AARCH64, "arm64", with(0x76, 9, 0x55, 0x48), 0},
		"arm64":                     {elf.EM_AARCH64, "arm64", arm64(0xf9400b90, 0xeb3063ff, 0x540005a9, 0xf81d0ffe), 12},
		"arm64, no store after it":  {elf.EM_AARCH64, "arm64", arm64(0xf9400b90, 0xeb3063ff, 0x540005a9, 0xf81d0ffd), 0},
		"arm64, cut off":            {elf.EM_AARCH64, "arm64", arm64(0xf9400b90, 0xeb3063ff, 0x540005a9), 0},
		"arm64, another jump":       {elf.EM_AARCH64, "arm64", arm64(0xf9400b90, 0xeb3063ff, 0x540005a8, 0xf81d0ffe), 0},
		"arm64, a large frame":      {elf.EM_AARCH64, "arm64", arm64(0xf9400b90, 0xd10203f1, 0xeb10023f, 0x54000789), 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := siteOf(described("go1.26.1", c.machine, c.code...), c.host)
			require.NoError(t, err)
			require.Equal(t, site{offset: 0x1000 + c.want, address: 0x401000 + c.want}, got)
		})
	}
}

// TestBulkProgramOfAnotherMachineIsUnderstood builds programs for all supported
// architectures. It reads the programs without running them, because this
// machine may not be able to run them.
func TestBulkProgramOfAnotherMachineIsUnderstood(t *testing.T) {
	for goarch, machine := range goprogram.Machines {
		for _, ldflags := range []string{"", "-s -w"} {
			out := filepath.Join(t.TempDir(), "program")
			cmd := exec.Command("go", "build", "-o", out, "-ldflags="+ldflags, "../../../../../test/testdata/allocator")
			cmd.Env = append(os.Environ(), "GO111MODULE=off", "GOOS=linux", "CGO_ENABLED=0", "GOARCH="+goarch)
			b, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", b)
			f, err := os.Open(out)
			require.NoError(t, err)
			defer f.Close()
			st, err := f.Stat()
			require.NoError(t, err)
			p, err := goprogram.Read(f, st.Size(), query)
			require.NoError(t, err)
			require.Equal(t, machine, p.Machine)
			require.Equal(t, ldflags == "", p.Variable != 0, "only the symbol table tells of variables")
			place, err := siteOf(p, goarch)
			require.NoError(t, err)
			require.Greater(t, place.offset, p.Functions[0].Offset, "the probe is behind the stack check")
			require.NotEmpty(t, p.Runs)
		}
	}
}
