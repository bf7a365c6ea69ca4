// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"

// Meters measure the CPU time of profiling, by the kind of work.
type Meters struct {
	// Samples measures reading samples of running threads and unwinding their
	// stacks. Names measures naming these samples and building their
	// profiles. The CPU time of both kinds of work grows with the number of
	// samples, so it determines the frequency.
	Samples, Names cputime.Meter
	// Files measures the CPU time for reading the files and the memory of processes. This CPU
	// time has a budget.
	Files cputime.Meter
}
