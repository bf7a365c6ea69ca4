// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitor takes one reading per unit and moment: how much of its CPU a
// unit uses, and, in the same shape, whatever else a policy can watch. A reading
// is cumulative, so that one that is late or missing bends no mean.
//
// A [Source] opens a [Watcher] per unit, which reads the monitors of the policies
// in use, each from the file or the event that this host has for it. What one of
// them cannot read leaves the others; what cannot be had at all says why, as a
// [cgroup.Unavailable]. Figures of the host, and limits of cgroups that several
// units are below, are read once for all of them.
//
// It knows of cgroups and processes, and nothing of policies or of profiles.
package monitor
