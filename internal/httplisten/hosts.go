// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hosts checks the Host of requests to a server on a loopback address. By DNS
// rebinding a website may point its own name to 127.0.0.1: for a browser a request is
// then one of the same origin, and only Host shows the website's name.
type hosts struct {
	configured string // the host of the endpoint, as it is written there
}

// newHosts returns nil for a server at addr that others than this host reach: by
// which names is unknown.
func newHosts(endpoint string, addr net.Addr) *hosts {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return nil
	}
	host, _, _ := net.SplitHostPort(endpoint)
	return &hosts{configured: host}
}

// allow reports whether a request names this host, whatever its port. HTTP/1.0 has no
// Host, and no browser speaks it.
func (h *hosts) allow(r *http.Request) bool {
	if h == nil || r.Host == "" {
		return true
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	if strings.EqualFold(host, "localhost") || strings.EqualFold(host, h.configured) {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}
