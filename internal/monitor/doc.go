// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitor takes one reading per unit and moment: how much of its CPU a
// unit uses, and, in the same shape, whatever else a policy can watch. A reading
// is cumulative, so that one that is late or missing bends no mean.
//
// It knows of cgroups and processes, and nothing of policies or of profiles.
package monitor
