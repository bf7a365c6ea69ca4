// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

// checkoutPeers returns the peers of the demo's main unit. The peer payments is slow, and
// segments to stock.example are lost.
func checkoutPeers(from, to time.Time) []store.Peer {
	const kib, mib = 1 << 10, 1 << 20
	peer := func(direction, address string, port int, connections, sent, received int64, rtt time.Duration) store.Peer {
		return store.Peer{
			PeerKey: store.PeerKey{Address: address, Direction: direction, Port: port, Transport: "tcp"}, From: from, To: to,
			Connections: connections, Sent: sent, Received: received, Segments: sent/1400 + 12, RTT: rtt, RTTVariation: rtt / 8,
			Path: 3 * time.Second, ReceiverWindow: 20 * time.Millisecond,
		}
	}
	postgres := peer("outbound", "10.0.3.17", 5432, 20, 3*mib, 41*mib, 410*time.Microsecond)
	postgres.Service, postgres.Name = "", "/system.slice/postgresql.service"
	postgres.Unit = ID(CheckoutHost, postgres.Name)
	cart := peer("outbound", "10.0.3.21", 8080, 8, 2*mib, 6*mib, 620*time.Microsecond)
	cart.Service, cart.Name = "cart", "9a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b"
	cart.Unit = ID(CheckoutHost, cart.Name)
	payments := peer("outbound", "10.0.9.4", 443, 4, 9*mib, 900*kib, 84*time.Millisecond)
	payments.ReceiverWindow, payments.Connects = 9*time.Second, 118
	stock := peer("outbound", "2001:db8:7::2a", 443, 2, 1*mib, 210*kib, 31*time.Millisecond)
	stock.Retransmits = 31
	legacy := peer("outbound", "10.0.9.90", 9000, 0, 0, 0, 0)
	legacy.ConnectFailures, legacy.Segments, legacy.Path, legacy.ReceiverWindow = 57, 0, 0, 0
	ingress := peer("inbound", "10.0.1.2", 8080, 61, 66*mib, 12*mib, 900*time.Microsecond)
	scraper := peer("inbound", "10.0.1.9", 9464, 1, 500*kib, 2*kib, 700*time.Microsecond)
	dns := store.Peer{PeerKey: store.PeerKey{Address: "10.0.0.10", Direction: "outbound", Port: 53, Transport: "udp"}, From: from, To: to, Connections: 2}
	others := peer("", "", 0, 14, 300*kib, 210*kib, 0)
	others.Transport = ""
	return []store.Peer{ingress, postgres, payments, cart, stock, scraper, dns, legacy, others}
}
