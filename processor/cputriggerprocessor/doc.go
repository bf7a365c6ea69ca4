// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cputriggerprocessor is the processor `cpu_trigger`: it watches how
// much of its CPU each unit (a container, a service, a process) uses, and lets
// the profiles of a unit out only while a policy holds its gate open, stamped
// with the reason.
//
// It finds out which unit a profile is about, takes readings, asks the decision
// core in internal/trigger, and splits, stamps and counts what passes. How the
// profiles were sampled is not its business.
package cputriggerprocessor

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
