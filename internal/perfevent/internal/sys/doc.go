// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sys is the kernel's interface to perf events, as far as
// golang.org/x/sys/unix lacks it: the constants of linux/perf_event.h that every
// operating system needs to decode records, opening an event, and the sysctls
// and limits that apply.
package sys
