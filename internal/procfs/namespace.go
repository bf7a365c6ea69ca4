// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

// A Namespace identifies a namespace of the kernel.
type Namespace struct{ Device, Inode uint64 }
