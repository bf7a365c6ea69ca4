// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestMarkTruncated(t *testing.T) {
	at := func(kind samples.FrameType, lines ...samples.Line) *samples.Location {
		return &samples.Location{Type: kind, Lines: lines, Resolved: true}
	}
	fn := func(name string) samples.Line { return samples.Line{Function: name} }
	leaf := at(samples.FrameNative, fn("work"))
	for name, c := range map[string]struct {
		root *samples.Location
		want bool
	}{
		"_start":                        {at(samples.FrameNative, fn("_start")), false},
		"a thread of glibc":             {at(samples.FrameNative, fn("clone3")), false},
		"a version behind the name":     {at(samples.FrameNative, fn("clone@@GLIBC_2.2.5")), false},
		"a goroutine":                   {at(samples.FrameGo, fn("runtime.goexit")), false},
		"a thread of Go":                {at(samples.FrameGo, fn("runtime.mstart")), false},
		"Go's start":                    {at(samples.FrameGo, fn("_rt0_amd64_linux")), false},
		"main, below a libc without fp": {at(samples.FrameNative, fn("main")), true},
		"unknown":                       {at(samples.FrameNative), true},
		"a kernel thread":               {at(samples.FrameKernel, fn("ret_from_fork_asm")), false},
		"a system call without a user":  {at(samples.FrameKernel, fn("entry_SYSCALL_64_after_hwframe")), true},
		"a user function that is called like a kernel's": {at(samples.FrameNative, fn("kthread")), true},
		"a root with others inlined":                     {at(samples.FrameNative, fn("init"), fn("_start")), false},
		"a root inlined into something":                  {at(samples.FrameNative, fn("_start"), fn("init")), true},
		"a demangled name":                               {at(samples.FrameNative, samples.Line{Function: "clone", SystemName: "_ZN5clone"}), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &samples.Stack{Locations: []*samples.Location{leaf, c.root}}
			MarkTruncated(s)
			require.Equal(t, c.want, s.Truncated)
		})
	}
}

func TestMarkTruncatedOfADeepStack(t *testing.T) {
	root := &samples.Location{Type: samples.FrameNative, Lines: []samples.Line{{Function: "_start"}}}
	s := &samples.Stack{}
	for range maxDepth - 1 {
		s.Locations = append(s.Locations, root)
	}
	MarkTruncated(s)
	require.False(t, s.Truncated)
	s.Locations = append(s.Locations, root)
	MarkTruncated(s)
	require.True(t, s.Truncated)
	MarkTruncated(&samples.Stack{})
}

func TestStackTurnsWholeOnceItsRootIsKnown(t *testing.T) {
	root := &samples.Location{Type: samples.FrameNative}
	s := &samples.Stack{Locations: []*samples.Location{root}}
	MarkTruncated(s)
	require.True(t, s.Truncated)
	root.Lines = []samples.Line{{Function: "_start"}}
	MarkTruncated(s)
	require.False(t, s.Truncated)
}

func TestNamelessEndOfAStack(t *testing.T) {
	m := &samples.Mapping{Path: "/bin/stripped"}
	for name, c := range map[string]struct {
		end  samples.Location
		want bool
	}{
		"without a name":               {samples.Location{Type: samples.FrameNative, Mapping: m}, true},
		"with one":                     {samples.Location{Type: samples.FrameNative, Mapping: m, Lines: []samples.Line{{Function: "main"}}}, false},
		"a root":                       {samples.Location{Type: samples.FrameNative, Mapping: m, Lines: []samples.Line{{Function: "_start"}}}, false},
		"in memory that no file is in": {samples.Location{Type: samples.FrameNative}, false},
		"in the kernel":                {samples.Location{Type: samples.FrameKernel, Mapping: m}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &samples.Stack{Locations: []*samples.Location{{Type: samples.FrameNative}, &c.end}}
			MarkTruncated(s)
			if c.want {
				require.Same(t, &c.end, NamelessEnd(s))
			} else {
				require.Nil(t, NamelessEnd(s))
			}
		})
	}
	deep := &samples.Stack{Locations: slices.Repeat([]*samples.Location{{Type: samples.FrameNative, Mapping: m}}, maxDepth)}
	MarkTruncated(deep)
	require.Nil(t, NamelessEnd(deep), "it may go on")
	require.Nil(t, NamelessEnd(&samples.Stack{Truncated: true}))
}
