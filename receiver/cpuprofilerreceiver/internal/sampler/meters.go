// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"

// Meters measure the CPU time that profiling costs, by the kind of work.
type Meters struct {
	// Samples is for reading samples of running threads and finding their stacks, Names
	// for naming these and building their profiles. Both grow with the number of samples,
	// so they decide about the frequency.
	Samples, Names cputime.Meter
	// Files is for reading the files and the memory of processes, which has a budget.
	Files cputime.Meter
}
