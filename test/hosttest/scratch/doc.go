// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package scratch creates temporary cgroups for tests and the demo. Like a container
// engine, it uses the same path in every hierarchy that is related to CPU time. The
// package can also make a file system hang.
package scratch
