// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

func TestPeersOfAnOpening(t *testing.T) {
	m := Demo(testNow)
	h := newTestServer(t, m)
	page := getPage(t, h, hotURL)
	assert.Equal(t, "Network: 142 MiB with 8 peers; 10.0.9.4:443 slow: 84 ms there and back, reads slowly , "+
		"[2001:db8:7::2a]:443 4.08 % sent again , 10.0.9.90:9000 57 connects failed .", spaced(textOf(one(t, page, "p", class("peers-short")))))
	table := tableRows(one(t, page, "table", class("peers-table")))
	assert.Equal(t, []string{"Peer", "Direction", "Connections", "Sent", "Received", "Round trip", "Sent again", "Limited by", "Failed connects"}, table[0])
	for i := range table {
		for k := range table[i] {
			table[i][k] = spaced(table[i][k])
		}
	}
	assert.Equal(t, []string{"10.0.1.2", "inbound tcp, at port 8080", "61", "66 MiB", "12 MiB", "900 µs ± 113 µs", "0 %", "network 99 %, receiver window 1 % of 3.02 s", "0"}, table[1])
	assert.Equal(t, "postgresql.service 10.0.3.17:5432", table[2][0])
	assert.Equal(t, []string{
		"10.0.9.4:443 slow: 84 ms there and back, reads slowly", "outbound tcp", "4 118 new", "9 MiB", "900 KiB", "84 ms ± 10.5 ms", "0 %",
		"receiver window 75 %, network 25 % of 12 s", "0",
	}, table[3])
	assert.Equal(t, []string{"10.0.0.10:53", "outbound udp", "2", "–", "–", "–", "–", "–", "0"}, table[7], "the kernel does not count UDP")
	assert.Equal(t, "all others", table[len(table)-1][0])
	links := find(one(t, page, "table", class("peers-table")), "a", func(n *html.Node) bool { return strings.HasPrefix(attributeOf(n, "href"), "/units/") })
	require.Len(t, links, 2)
	assert.Equal(t, http.StatusOK, get(t, h, attributeOf(links[0], "href")).Code)

	picture := one(t, page, "svg", class("peers-picture"))
	lines := find(picture, "path")
	require.Len(t, lines, 8)
	assert.Equal(t, "14", attributeOf(lines[0], "stroke-width"), "the most bytes")
	assert.Len(t, find(picture, "path", class("slow")), 1)
	assert.Len(t, find(picture, "path", class("lossy")), 1)
	assert.Len(t, find(picture, "a"), 2)
	assert.Contains(t, spaced(textOf(picture)), "1.21 MiB, 31 ms, 4.08 % sent again")

	// The table can be sorted by each column. The links of the columns
	// keep the other parameters.
	for key, first := range map[string]string{
		"peer": "10.0.0.10:53", "direction": "postgresql.service", "connections": "10.0.1.2", "sent": "10.0.1.2", "received": "postgresql.service",
		"rtt": "10.0.9.4:443", "again": "[2001:db8:7::2a]:443", "limit": "10.0.9.4:443", "failed": "10.0.9.90:9000",
	} {
		page := getPage(t, h, hotURL+"?type=off_cpu&peers="+key)
		table := one(t, page, "table", class("peers-table"))
		assert.True(t, strings.HasPrefix(tableRows(table)[1][0], first), "%s: %s", key, tableRows(table)[1][0])
		assert.Len(t, find(table, "th", func(n *html.Node) bool { return attributeOf(n, "aria-sort") != "" }), 1)
		other := map[bool]string{true: "peer", false: "rtt"}[key == "rtt"]
		assert.Len(t, find(table, "a", with("href", hotURL+"?peers="+other+"&type=off_cpu#peers")), 1)
	}

	// If a gate opened because of the network, the peers come first. The threshold of
	// the policy applies to the peers.
	for i := range m.AllOpenings {
		if o := &m.AllOpenings[i]; o.ID == HotOpening {
			o.Monitor, o.Threshold = "tcp_rtt", 20
		}
	}
	body := get(t, h, hotURL).Body.String()
	assert.Less(t, strings.Index(body, `id="peers"`), strings.Index(body, `aria-label="Profiles"`))
	assert.Len(t, find(getPage(t, h, hotURL), "path", class("slow")), 1)
	assert.Len(t, find(getPage(t, h, hotURL), "path", class("slow-lossy")), 1)

	report := getPage(t, h, hotURL+"/report.html")
	assert.Len(t, tableRows(one(t, report, "table", class("peers-table"))), 10)
	assert.Empty(t, find(one(t, report, "section", class("peers")), "a"))
	assert.Len(t, find(getPage(t, h, checkoutPage+string(CheckoutID)), "svg", class("peers-picture")), 1)

	// If no peers are known, the page of an opening explains how to get peers. The page
	// of a baseline does not explain this.
	m.AllPeers = nil
	assert.Contains(t, textOf(one(t, getPage(t, h, hotURL), "section", class("peers"))), "None are known for this time.")
	assert.Empty(t, find(getPage(t, h, "/openings/"+BaselineOpening), "section", class("peers")))
	assert.Empty(t, find(getPage(t, h, hotURL+"/report.html"), "section", class("peers")))
}

// spaced replaces all no-break spaces with normal spaces.
func spaced(s string) string { return strings.ReplaceAll(s, "\u00a0", " ") }

// TestManyHostilePeers covers more peers than the page shows, all of them with hostile
// names.
func TestManyHostilePeers(t *testing.T) {
	m := Demo(testNow)
	var all []store.Peer
	for i := range 500 {
		p := store.Peer{PeerKey: store.PeerKey{
			Address: fmt.Sprintf("fd00::%x", i), Port: i, Direction: []string{"inbound", "outbound", "\u202e<b>"}[i%3], Transport: "<i>\x00",
		}, PeerName: store.PeerName{Service: strings.Repeat("<script>\u202e", i), Name: "\x00"}, Sent: int64(i), RTT: time.Duration(i) * time.Second, Segments: 1, Retransmits: int64(i)}
		all = append(all, p)
	}
	m.AllPeers[CheckoutID] = all
	h := newTestServer(t, m)
	for _, path := range []string{hotURL, hotURL + "/report.html", checkoutPage + string(CheckoutID)} {
		w := get(t, h, path)
		require.Equal(t, http.StatusOK, w.Code)
		assert.Less(t, w.Body.Len(), 1<<20)
		page := parse(t, w.Body)
		assert.False(t, strings.ContainsAny(textOf(page), "\u202e\x00"))
		keepsToPolicy(t, page)
		assert.Len(t, tableRows(one(t, page, "table", class("peers-table"))), peersPerTable+2)
		assert.Len(t, find(one(t, page, "svg", class("peers-picture")), "path"), 2*peersPerSide)
	}
}
