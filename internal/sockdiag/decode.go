// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
)

// These constants are part of the kernel's ABI, which is defined in
// include/uapi/linux/{sock_diag,inet_diag,tcp}.h.
const (
	netlinkSockDiag      = 4    // NETLINK_SOCK_DIAG
	groupTCP4, groupTCP6 = 1, 3 // SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY

	familyV4, familyV6 = 2, 10 // AF_INET, AF_INET6

	typeFamily = 20 // SOCK_DIAG_BY_FAMILY

	extInfo      = 2  // INET_DIAG_INFO
	attrInfo     = 2  // INET_DIAG_INFO
	attrProtocol = 10 // INET_DIAG_PROTOCOL
	attrCgroup   = 21 // INET_DIAG_CGROUP_ID

	requestSize = 56 // struct inet_diag_req_v2
	socketSize  = 72 // struct inet_diag_msg

	leastInfo = 192 // up to tcpi_sndbuf_limited, Linux 4.9
	sentInfo  = 216 // up to tcpi_bytes_retrans, Linux 4.19
)

var errMalformed = errors.New("malformed netlink message")

// request returns a message that requests all sockets of a family and protocol.
func request(family byte, p Protocol) netlink.Message {
	b := make([]byte, requestSize)
	b[0], b[1] = family, byte(p)
	states := uint32(dumped)
	if p == TCP {
		b[2] = 1 << (extInfo - 1)
	} else {
		states = 1 << Established // UDP sockets in other states have no peer
	}
	binary.NativeEndian.PutUint32(b[4:], states)
	return netlink.Message{Header: netlink.Header{Type: typeFamily, Flags: netlink.Request | netlink.Dump}, Data: b}
}

// decode decodes one socket. If the message does not contain the protocol, the protocol
// is p. If the socket is neither TCP nor UDP, ok is false.
func (s *Socket) decode(b []byte, p Protocol) (ok bool, err error) {
	if len(b) < socketSize {
		return false, errMalformed
	}
	e := binary.NativeEndian
	*s = Socket{Protocol: p, State: State(b[1])}
	addr := func(at int) netip.Addr {
		if b[0] == familyV4 {
			return netip.AddrFrom4([4]byte(b[at : at+4]))
		}
		return netip.AddrFrom16([16]byte(b[at : at+16])).Unmap()
	}
	if b[0] != familyV4 && b[0] != familyV6 {
		return false, nil
	}
	s.Local = netip.AddrPortFrom(addr(8), binary.BigEndian.Uint16(b[4:]))
	s.Remote = netip.AddrPortFrom(addr(24), binary.BigEndian.Uint16(b[6:]))
	s.Cookie = uint64(e.Uint32(b[44:])) | uint64(e.Uint32(b[48:]))<<32
	s.ReceiveQueue, s.SendQueue = e.Uint32(b[56:]), e.Uint32(b[60:])
	s.Inode = e.Uint32(b[68:])
	attributes, err := netlink.NewAttributeDecoder(b[socketSize:])
	if err != nil {
		return false, fmt.Errorf("%w: %w", errMalformed, err)
	}
	for attributes.Next() {
		attributes.Do(func(value []byte) error { // without copying the value
			switch kind := attributes.Type(); {
			case kind == attrInfo:
				s.TCP, s.HasTCP = decodeTCP(value)
			case kind == attrProtocol && len(value) > 0:
				s.Protocol = Protocol(value[0])
			case kind == attrCgroup && len(value) >= 8:
				s.Cgroup = e.Uint64(value)
			}
			return nil
		})
	}
	if err := attributes.Err(); err != nil {
		return false, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return s.Protocol == TCP || s.Protocol == UDP, nil
}

// decodeTCP decodes a struct tcp_info. Newer kernels append fields to this struct.
func decodeTCP(b []byte) (t TCPInfo, ok bool) {
	if len(b) < leastInfo {
		return t, false
	}
	e := binary.NativeEndian
	micros := func(at int) time.Duration { return time.Duration(e.Uint32(b[at:])) * time.Microsecond }
	long := func(at int) time.Duration { // capped at 2^50 µs to avoid an overflow
		return time.Duration(min(e.Uint64(b[at:]), 1<<50)) * time.Microsecond
	}
	t = TCPInfo{
		RTT: micros(68), RTTVar: micros(72), Retransmits: e.Uint32(b[100:]),
		Sent: e.Uint64(b[120:]), Received: e.Uint64(b[128:]),
		SegmentsSent: e.Uint32(b[136:]),
		LastAck:      time.Duration(e.Uint32(b[56:])) * time.Millisecond,
		Busy:         long(168), ReceiverWindow: long(176), SendBuf: long(184),
	}
	if len(b) >= sentInfo { // bytes_acked, used above, lacks unacknowledged bytes
		if sent, again := e.Uint64(b[200:]), e.Uint64(b[208:]); sent >= again {
			t.Sent = sent - again
		}
	}
	return t, true
}
