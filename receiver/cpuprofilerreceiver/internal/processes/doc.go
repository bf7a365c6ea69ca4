// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes keeps data about the processes of samples. This data is a resource
// that describes the program of the process, its mappings, and its stacks. Stacks are
// interned, so that a known stack costs no memory.
//
// The data has two sources. The kernel's records of forks, execs and mappings arrive with
// the samples. They cover every process that starts after sampling has begun, even if it
// runs for only a few milliseconds. /proc covers the processes that ran before. It also
// contains the environment and cgroup, which records do not contain. Data that neither
// source contains stays unset and is counted. A process can also publish the attributes of
// its service in its memory.
//
// The goroutine that reads the rings uses a [Table]. Another goroutine uses a [Finder] to
// search for the processes of targets.
package processes
