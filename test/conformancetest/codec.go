// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import "google.golang.org/grpc/mem"

// AsIs is a gRPC codec that does not change messages.
type AsIs struct{}

// Name returns the name of gRPC's own codec.
func (AsIs) Name() string { return "proto" }

// Marshal returns the bytes that v points to.
func (AsIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal stores the bytes of the message in v.
func (AsIs) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
