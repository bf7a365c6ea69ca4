// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package scratch makes cgroups for the moment, for tests and the demo, as a
// container engine would: of the same path in every hierarchy that has to do
// with CPU time.
package scratch
