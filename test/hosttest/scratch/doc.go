// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package scratch makes temporary cgroups for tests and the demo as a container
// engine does: with the same path in every hierarchy that concerns CPU time. It
// also stalls disks.
package scratch
