// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package httplisten

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// getAs sends a request with the given host and returns the response.
func getAs(t *testing.T, s *Server, host string) string {
	t.Helper()
	c := dial(t, s)
	_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	response, _ := io.ReadAll(c)
	return string(response)
}

// TestRequestsForAnotherHostAreRefusedOnLoopback covers a website whose own name points
// to 127.0.0.1. A browser then sends the website's name as the host.
func TestRequestsForAnotherHostAreRefusedOnLoopback(t *testing.T) {
	cfg := newConfig(ok)
	core, logs := observer.New(zapcore.InfoLevel)
	set := componenttest.NewNopTelemetrySettings()
	set.Logger = zap.New(core)
	s := New(cfg)
	require.NoError(t, s.Start(t.Context(), componenttest.NewNopHost(), set))
	t.Cleanup(func() { require.NoError(t, s.Shutdown(context.Background())) })

	for _, host := range []string{"localhost", "LocalHost:4041", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.1.2.3", "[::1]", "[::1]:4041", "[::ffff:127.0.0.1]"} {
		require.Contains(t, getAs(t, s, host), "served", host)
	}
	wrong := []string{"evil.example", "evil.example:4041", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[fe80::1]", "0.0.0.0", strings.Repeat("a", 1000)}
	for _, host := range wrong {
		response := getAs(t, s, host)
		require.Contains(t, response, "403 Forbidden", host)
		require.NotContains(t, response, "served", host)
	}
	require.EqualValues(t, len(wrong), s.Stats().WrongHost)
	lines := logs.FilterMessage("request for another host refused").All()
	require.Len(t, lines, 1, "at most one a minute")
	require.Equal(t, "evil.example", lines[0].ContextMap()["host"])
}

func TestAnyHostIsServedOverAUnixSocket(t *testing.T) {
	require.Contains(t, getAs(t, start(t, overUnix(t, newConfig(ok))), "evil.example"), "served")
}

func TestHostsOfListeners(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4041} }
	for _, tc := range []struct {
		name, endpoint string
		addr           net.Addr
		names          []string
		host           string
		want           bool
	}{
		{"the endpoint's own name", "profiler.internal:4041", at("127.0.0.1"), nil, "Profiler.internal:4041", true},
		{"another name", "profiler.internal:4041", at("::1"), nil, "evil.example:4041", false},
		{"all addresses: names are unknown", "0.0.0.0:4041", at("0.0.0.0"), nil, "node7.example:4041", true},
		{"an address of the network", "10.1.2.3:4041", at("10.1.2.3"), nil, "node7.example", true},
		{"HTTP/1.0 without a host", "localhost:4041", at("127.0.0.1"), nil, "", true},
		{"one of the names", "0.0.0.0:4041", at("0.0.0.0"), []string{"node7.example"}, "Node7.example:4041", true},
		{"none of the names", "0.0.0.0:4041", at("0.0.0.0"), []string{"node7.example"}, "evil.example:4041", false},
		{"there are no names", "0.0.0.0:4041", at("0.0.0.0"), []string{}, "evil.example:4041", false},
		{"an address, which no website has for a name", "0.0.0.0:4041", at("0.0.0.0"), []string{}, "10.1.2.3:4041", true},
		{"one of the names on loopback", "localhost:4041", at("127.0.0.1"), []string{"node7.example"}, "node7.example", true},
		{"an address that is not loopback's", "localhost:4041", at("127.0.0.1"), []string{}, "10.1.2.3:4041", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, newHosts(tc.endpoint, tc.addr, tc.names).allow(&http.Request{Host: tc.host}))
		})
	}
}
