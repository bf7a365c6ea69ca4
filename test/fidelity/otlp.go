// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// Window is a span of time that includes both ends.
type Window struct{ From, To time.Time }

func (w Window) has(unixNano uint64) bool {
	return w.From.IsZero() || unixNano >= uint64(w.From.UnixNano()) && unixNano <= uint64(w.To.UnixNano())
}

// OfOTLP returns the profile of a process within a window, from the output of a
// receiver. It uses only samples of running threads. A zero window includes all
// times. Functions have the names from the symbol table of the program's file.
// period is the period of one sample.
func OfOTLP(all []pprofile.Profiles, pid int, within Window) (p Profile, period time.Duration) {
	for _, ps := range all {
		d := ps.Dictionary()
		for _, rp := range ps.ResourceProfiles().All() {
			if of, ok := rp.Resource().Attributes().Get(attr.PID); !ok || of.Int() != int64(pid) {
				continue
			}
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					if text(d, profile.SampleType().TypeStrindex()) != "samples" {
						continue
					}
					period = time.Duration(profile.Period())
					for _, s := range profile.Samples().All() {
						count := 0
						for _, at := range s.TimestampsUnixNano().All() {
							if within.has(at) {
								count++
							}
						}
						if count > 0 {
							p.Samples = append(p.Samples, Sample{Stack: stack(d, s), Count: count})
						}
					}
				}
			}
		}
	}
	return p, period
}

// Unknown replaces the name of a function if a sampler does not know the name.
const Unknown = "[unknown]"

func stack(d pprofile.ProfilesDictionary, s pprofile.Sample) (frames []Frame) {
	for _, li := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
		l := d.LocationTable().At(int(li))
		var f Frame
		for _, line := range l.Lines().All() {
			function := d.FunctionTable().At(int(line.FunctionIndex()))
			name := text(d, function.SystemNameStrindex())
			if name == "" {
				name = text(d, function.NameStrindex())
			}
			f.Functions = append(f.Functions, name)
		}
		if len(f.Functions) == 0 {
			f.Functions = []string{Unknown}
		}
		for _, ai := range l.AttributeIndices().All() {
			a := d.AttributeTable().At(int(ai))
			if text(d, a.KeyStrindex()) == attr.FrameType {
				f.Kernel = a.Value().AsString() == "kernel"
			}
		}
		frames = append(frames, f)
	}
	return frames
}

func text(d pprofile.ProfilesDictionary, i int32) string { return d.StringTable().At(int(i)) }
