// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// These are the symbol names of the function and the variable.
const (
	sampledFunction = "runtime.profilealloc"
	rateVariable    = "runtime.MemProfileRate"
)

// query selects the sampled function, the variable with the sampling rate, and the
// functions of the runtime.
var query = goprogram.Query{Functions: []string{sampledFunction}, Variable: rateVariable, Size: 8, Runs: ofRuntime}

// These constants are the minor versions of the oldest and the newest supported Go
// release. In all of these releases, the function is runtime.profilealloc(mp *m, x
// unsafe.Pointer, size uintptr). Its third argument is the size of the slot. The
// arguments are always in registers on both machines.
const (
	firstRelease = 22
	lastRelease  = 26
)

// errNoSampling is returned for a program without the function sampledFunction.
var errNoSampling = errors.New("the program has no " + sampledFunction)

// site is the position of the uprobe. It consists of the offset in the file and the
// link-time address.
type site struct{ offset, address uint64 }

// siteOf returns the site of the uprobe in a program. It refuses a program in which the
// register with the size of an allocation is unknown, because a wrong register would make
// every value wrong.
func siteOf(p *goprogram.Program, goarch string) (site, error) {
	minor, ok := goprogram.Release(p.Version)
	if goprogram.Machines[goarch] != p.Machine || !ok || minor < firstRelease || minor > lastRelease {
		return site{}, fmt.Errorf("the size of an allocation cannot be read from the runtime of %q for %v: known are go1.%d to go1.%d on amd64 and arm64, for programs of this machine's own kind (%s)",
			p.Version, p.Machine, firstRelease, lastRelease, goarch)
	}
	f := p.Functions[0]
	if f == nil {
		return site{}, errNoSampling
	}
	in := f.AfterStackCheck(p.Machine)
	return site{offset: f.Offset + in, address: f.Address + in}, nil
}

// ofRuntime reports whether a function belongs to the runtime's allocator. runtime/pprof
// removes the same functions from the leaves of a heap profile.
func ofRuntime(name []byte) bool {
	return bytes.HasPrefix(name, []byte("runtime.")) || bytes.HasPrefix(name, []byte("internal/runtime/"))
}
