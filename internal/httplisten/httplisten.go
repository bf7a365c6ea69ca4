// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package httplisten runs the HTTP servers of components, on TCP or on a Unix
// socket. It limits the number of connections and the size of headers. Shutdown
// waits for running requests.
package httplisten

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"go.opentelemetry.io/collector/config/confignet"

	"github.com/hotprofile/hotprofile/internal/unixsocket"
)

// ValidateAddr returns an error for an invalid endpoint or transport. The error contains
// prefix and the key. example is a valid host:port.
func ValidateAddr(prefix string, addr confignet.AddrConfig, example string) error {
	switch addr.Transport {
	case confignet.TransportTypeTCP, confignet.TransportTypeTCP4, confignet.TransportTypeTCP6:
		_, port, err := net.SplitHostPort(addr.Endpoint)
		if err == nil {
			_, err = net.LookupPort("tcp", port) // a number below 65536, or the name of a service
		}
		if err != nil {
			return fmt.Errorf("%sendpoint: %q is not host:port, such as %s", prefix, addr.Endpoint, example)
		}
	case confignet.TransportTypeUnix:
	default:
		return fmt.Errorf("%stransport: %q is not one of tcp, tcp4, tcp6, unix", prefix, addr.Transport)
	}
	return nil
}

// listen opens the listener. The listener of confighttp has no limit on connections, and
// leaves the mode of a Unix socket to the umask. Connections are counted below TLS,
// because net/http needs a *tls.Conn for HTTP/2.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	var secure *tls.Config
	if s.cfg.HTTP.TLS.HasValue() {
		var err error
		if secure, err = s.cfg.HTTP.TLS.Get().LoadTLSConfig(ctx); err != nil {
			return nil, err
		}
		secure.NextProtos = []string{"h2", "http/1.1"}
	}
	l, err := s.listenPlain(ctx)
	if err != nil {
		return nil, err
	}
	s.connections.Listener = l
	l = s.connections
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}

func (s *Server) listenPlain(ctx context.Context) (net.Listener, error) {
	addr := &s.cfg.HTTP.NetAddr
	if addr.Transport == confignet.TransportTypeUnix {
		return unixsocket.Listen(ctx, addr.Endpoint, s.cfg.SocketMode)
	}
	return addr.Listen(ctx)
}
