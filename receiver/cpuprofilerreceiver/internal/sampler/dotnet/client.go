// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"context"
	"net"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Client is the process that connected to a Unix socket or, on Windows,
// over the loopback.
type Client struct {
	// Process contains the pid in the collector's pid namespace. The pid is 0 for a process
	// outside of this namespace.
	procfs.Process
	// Err is the reason why a part of Process is unknown.
	Err error
}

type clientKey struct{}

// WithClient returns the context of a request that the client sends.
func WithClient(ctx context.Context, p Client) context.Context {
	return context.WithValue(ctx, clientKey{}, p)
}

// clientOf asks the kernel for the process of a connection. It is called as soon as the
// connection is accepted, because the pid may later belong to another process.
func (s *Server) clientOf(c net.Conn) (key, value any) {
	pid, known, err := peer(c)
	if !known {
		return nil, nil
	}
	p := Client{Process: procfs.Process{PID: pid}, Err: err}
	if err == nil && pid != 0 {
		var who processes.Identity
		who, p.Err = s.intake.identityOf(p.PID)
		p.Process = who.Process
	}
	return clientKey{}, p
}
