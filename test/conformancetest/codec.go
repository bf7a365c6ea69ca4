// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import "google.golang.org/grpc/mem"

// AsIs is a codec of gRPC that leaves messages as they are.
type AsIs struct{}

// Name is the name of the codec that gRPC itself has.
func (AsIs) Name() string { return "proto" }

// Marshal takes the bytes of a message.
func (AsIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal puts the bytes of a message into v.
func (AsIs) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
