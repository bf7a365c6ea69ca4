// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitor reads the monitors of units: how much CPU a unit uses, and whatever
// else a policy can test. Readings are cumulative, so a late or missing one does not
// distort a mean.
//
// A [Source] opens a [Watcher] per unit, which reads the monitors in use, each from the
// file or event that this host has for it. A monitor that fails does not affect the
// others; one that a unit cannot have returns the reason, a [cgroup.Unavailable].
// Figures of the host, and limits of cgroups above several units, are read once for all
// of them.
//
// To add a monitor, write its file, with its name, its definition and its meter, and add
// a line to definitions.
//
// The package knows of cgroups and processes, not of policies or profiles.
package monitor
