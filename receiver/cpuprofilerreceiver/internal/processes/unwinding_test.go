// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestExecutableAndLibcAreTheExecutableAndTheCLibrary(t *testing.T) {
	mapped := func(paths ...string) *Process {
		s := newSpace()
		for i, path := range paths {
			s.mappings = append(s.mappings, &samples.Mapping{Start: uint64(i) << 12, Limit: uint64(i+1) << 12, Path: path})
		}
		return &Process{facts: &facts{path: "/usr/bin/program"}, space: s}
	}
	for name, c := range map[string]struct {
		paths            []string
		executable, libc string
	}{
		"glibc":        {[]string{"/usr/bin/program", "/usr/lib/libcrypto.so.3", "/usr/lib/libc.so.6"}, "/usr/bin/program", "/usr/lib/libc.so.6"},
		"older glibc":  {[]string{"/usr/bin/program", "/lib/libc-2.31.so"}, "/usr/bin/program", "/lib/libc-2.31.so"},
		"musl":         {[]string{"/usr/bin/program", "/lib/ld-musl-x86_64.so.1"}, "/usr/bin/program", "/lib/ld-musl-x86_64.so.1"},
		"static":       {[]string{"/usr/bin/program", "[vdso]"}, "/usr/bin/program", ""},
		"nothing":      {nil, "", ""},
		"libcap alone": {[]string{"/usr/lib/libcap.so.2"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			executable, libc := mapped(c.paths...).ExecutableAndLibc()
			path := func(m *samples.Mapping) string {
				if m == nil {
					return ""
				}
				return m.Path
			}
			require.Equal(t, c.executable, path(executable))
			require.Equal(t, c.libc, path(libc))
		})
	}
	p := mapped("/usr/bin/program")
	require.Equal(t, p.Mapped()[0], p.Mapping(4095))
	require.Nil(t, p.Mapping(4096))
}

func TestWholeStackStaysWhole(t *testing.T) {
	table := NewTable(Config{})
	p := &Process{table: table, facts: &facts{}, space: newSpace()}
	sample := &perfevent.Sample{User: []uint64{1, 2}}
	whole, other := p.Stack(sample, true), p.Stack(sample, false)
	require.NotSame(t, whole, other)
	MarkTruncated(whole)
	MarkTruncated(other)
	require.False(t, whole.Truncated)
	require.True(t, other.Truncated)
	require.Same(t, p.Stack(sample, false), p.Stack(sample, false))
}
