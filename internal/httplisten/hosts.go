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

// hosts checks the Host of requests as a protection against DNS rebinding. A website may
// point its own name to the address of the server. A browser then treats requests to the
// server as same-origin, and only Host reveals the name of the website.
type hosts struct {
	configured string   // the host as written in the endpoint
	allowed    []string // further names
	loopback   bool     // only this host can reach the server
}

// newHosts returns the Host check of a server at addr, or nil if every Host is allowed.
// Every Host is allowed on a Unix socket. It is also allowed if other hosts can reach the
// server and names is nil, because the names of the server are then unknown. An empty list
// of names is not nil.
func newHosts(endpoint string, addr net.Addr, names []string) *hosts {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() && names == nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(endpoint)
	return &hosts{configured: host, allowed: names, loopback: tcp.IP.IsLoopback()}
}

// allow reports whether the Host of a request is allowed. The port is ignored.
// Requests without a Host are allowed, because HTTP/1.0 has no Host, and no browser
// uses HTTP/1.0. A website's name is never an IP address, so a server that other hosts
// can reach accepts any IP address.
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

// rule describes the allowed hosts for an error message.
func (h *hosts) rule() string {
	switch {
	case h.allowed == nil:
		return "localhost or a loopback address"
	case h.loopback:
		return "localhost, a loopback address, or one of allowed_hosts"
	}
	return "localhost, an address, or one of allowed_hosts"
}
