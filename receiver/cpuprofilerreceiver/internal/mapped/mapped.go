// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package mapped opens files of other processes, those behind their mappings above
// all, and identifies them. It identifies them by what the kernel says: what is in a
// file, such as a build id, may be anybody's claim.
package mapped

// ID identifies a file and its content. No process can give a file the ID of another
// one: the kernel sets the time of the last change.
type ID struct {
	// Layer is what overlayfs calls the file in its lowest layer. It is the same in all
	// containers of an image, whose device numbers differ. A copy in a container's own
	// layer keeps it, but has another time of the last change.
	Layer         string
	Device, Inode uint64 // 0 with Layer
	// Size is in bytes, the times are in nanoseconds.
	Size, Modified, Changed int64
}
