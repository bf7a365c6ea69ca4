// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"

// Meters measure the CPU time of profiling, by the kind of work.
type Meters struct {
	// Samples measures reading samples of running threads and unwinding their stacks.
	// Names measures naming these samples and building their profiles. The sampling
	// frequency is adjusted to the CPU time of both kinds of work, because this CPU time
	// grows with the number of samples.
	Samples, Names cputime.Meter
	// Files measures the CPU time for reading the files and the memory of processes, which
	// is limited by a budget.
	Files cputime.Meter
}
