// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

// VDSOPath is the path of the mapping of the vdso.
const VDSOPath = "[vdso]"
