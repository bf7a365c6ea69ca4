// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import (
	"fmt"
	"io"
	"time"

	"github.com/google/pprof/profile"
)

// OfPprof reads a CPU profile that a Go program has written about itself.
func OfPprof(r io.Reader) (p Profile, period time.Duration, err error) {
	read, err := profile.Parse(r)
	if err != nil {
		return p, 0, fmt.Errorf("read a profile of runtime/pprof: %w", err)
	}
	for _, s := range read.Sample {
		sample := Sample{Count: int(s.Value[0])}
		for _, l := range s.Location {
			var f Frame
			for _, line := range l.Line {
				f.Functions = append(f.Functions, line.Function.Name)
			}
			if len(f.Functions) == 0 {
				f.Functions = []string{Unknown}
			}
			sample.Stack = append(sample.Stack, f)
		}
		p.Samples = append(p.Samples, sample)
	}
	return p, time.Duration(read.Period), nil
}
