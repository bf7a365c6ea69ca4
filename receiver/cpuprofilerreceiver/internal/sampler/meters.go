// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"

// Meters measure the CPU time of profiling, by the kind of work.
type Meters struct {
	// Samples measures reading samples of running threads and unwinding their stacks. Names
	// measures naming these samples and building their profiles. Both grow with the number
	// of samples, so they determine the frequency.
	Samples, Names cputime.Meter
	// Files measures reading the files and the memory of processes. This work has a budget.
	Files cputime.Meter
}
