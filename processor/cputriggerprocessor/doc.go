// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cputriggerprocessor is the processor `cpu_trigger`. It reads the monitors of
// each unit, which is a container, a service or a process. Profiles of a unit pass only
// while a policy holds the unit's gate open. The processor adds the reason to these
// profiles as attributes. The processor does not know how profiles are sampled.
//
// This package contains the configuration, the wiring and the reporting of transitions.
// docs/architecture.md lists the packages below it.
package cputriggerprocessor

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
