// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// hosts checks the Host of requests. By DNS rebinding a website may point its own name to
// the address of a server: for a browser a request is then one of the same origin, and
// only Host shows the website's name.
type hosts struct {
	configured string   // the host of the endpoint, as it is written there
	allowed    []string // further names
	loopback   bool     // others than this host do not reach the server
}

// newHosts returns nil for a server at addr that others than this host reach: by which
// names is unknown, unless they are given. nil names are not given, empty ones are.
func newHosts(endpoint string, addr net.Addr, names []string) *hosts {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() && names == nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(endpoint)
	return &hosts{configured: host, allowed: names, loopback: tcp.IP.IsLoopback()}
}

// allow reports whether a request names this host, whatever its port. HTTP/1.0 has no
// Host, and no browser speaks it. No website has an address for a name, so that a server
// for others is called by any address.
func (h *hosts) allow(r *http.Request) bool {
	if h == nil || r.Host == "" {
		return true
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	same := func(name string) bool { return strings.EqualFold(name, host) }
	if same("localhost") || same(h.configured) || slices.ContainsFunc(h.allowed, same) {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && (!h.loopback || ip.Unmap().IsLoopback())
}

// rule returns which hosts are allowed, for an error.
func (h *hosts) rule() string {
	switch {
	case h.allowed == nil:
		return "localhost or a loopback address"
	case h.loopback:
		return "localhost, a loopback address, or one of allowed_hosts"
	}
	return "localhost, an address, or one of allowed_hosts"
}
