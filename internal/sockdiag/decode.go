// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// The kernel's ABI: include/uapi/linux/{netlink,sock_diag,inet_diag,tcp}.h.
const (
	familyV4, familyV6 = 2, 10 // AF_INET, AF_INET6

	typeError  = 2  // NLMSG_ERROR
	typeDone   = 3  // NLMSG_DONE
	typeFamily = 20 // SOCK_DIAG_BY_FAMILY

	flagRequest = 0x1
	flagDump    = 0x300

	extInfo      = 2  // INET_DIAG_INFO
	attrInfo     = 2  // INET_DIAG_INFO
	attrProtocol = 10 // INET_DIAG_PROTOCOL
	attrCgroup   = 21 // INET_DIAG_CGROUP_ID

	headerSize  = 16 // struct nlmsghdr
	requestSize = 56 // struct inet_diag_req_v2
	socketSize  = 72 // struct inet_diag_msg
	attrHeader  = 4  // struct nlattr

	leastInfo = 192 // up to tcpi_sndbuf_limited, Linux 4.9
	sentInfo  = 216 // up to tcpi_bytes_retrans, Linux 4.19
)

var errMalformed = errors.New("malformed netlink message")

// request returns the message that asks for all sockets of a family and protocol.
func request(family byte, p Protocol, sequence uint32) []byte {
	b := make([]byte, headerSize+requestSize)
	e := binary.NativeEndian
	e.PutUint32(b, uint32(len(b)))
	e.PutUint16(b[4:], typeFamily)
	e.PutUint16(b[6:], flagRequest|flagDump)
	e.PutUint32(b[8:], sequence)
	b[headerSize], b[headerSize+1] = family, byte(p)
	states := uint32(dumped)
	if p == TCP {
		b[headerSize+2] = 1 << (extInfo - 1)
	} else {
		states = 1 << Established // others have no peer
	}
	e.PutUint32(b[headerSize+4:], states)
	return b
}

// decoder reads what a recvmsg returned.
type decoder struct {
	protocol Protocol // of the dump; 0: the messages have it
	sequence uint32   // of the dump; 0: any
	socket   Socket
}

// messages calls visit for each socket in b until it returns false. done reports the
// end of the dump.
func (d *decoder) messages(b []byte, visit func(*Socket) bool) (done bool, err error) {
	e := binary.NativeEndian
	for len(b) >= headerSize {
		n := int(e.Uint32(b))
		if n < headerSize || n > len(b) {
			return false, errMalformed
		}
		kind, sequence, body := e.Uint16(b[4:]), e.Uint32(b[8:]), b[headerSize:n]
		b = b[min(len(b), align(n)):]
		if d.sequence != 0 && sequence != d.sequence {
			continue // of a dump that was given up
		}
		switch kind {
		case typeDone:
			return true, kernelError(body)
		case typeError:
			if err := kernelError(body); err != nil {
				return true, err
			}
		case typeFamily:
			ok, err := d.decode(body)
			if err != nil {
				return false, err
			}
			if ok && !visit(&d.socket) {
				return false, ErrTooMany
			}
		}
	}
	return false, nil
}

func align(n int) int { return (n + 3) &^ 3 }

// kernelError returns the error number at the start of a message, negative in the ABI.
func kernelError(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if n := int32(binary.NativeEndian.Uint32(body)); n < 0 && n > -4096 {
		return syscall.Errno(-n)
	}
	return nil
}

// decode reads one socket into d.socket. ok is false for a socket that is of no use.
func (d *decoder) decode(b []byte) (ok bool, err error) {
	if len(b) < socketSize {
		return false, errMalformed
	}
	e := binary.NativeEndian
	s := &d.socket
	*s = Socket{Protocol: d.protocol, State: State(b[1])}
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
	for b = b[socketSize:]; len(b) >= attrHeader; {
		n := int(e.Uint16(b))
		if n < attrHeader || n > len(b) {
			return false, fmt.Errorf("%w: attribute of %d bytes", errMalformed, n)
		}
		kind, value := e.Uint16(b[2:])&0x3fff, b[attrHeader:n] // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
		b = b[min(len(b), align(n)):]
		switch {
		case kind == attrInfo:
			s.TCP, s.HasTCP = decodeTCP(value)
		case kind == attrProtocol && len(value) > 0:
			s.Protocol = Protocol(value[0])
		case kind == attrCgroup && len(value) >= 8:
			s.Cgroup = e.Uint64(value)
		}
	}
	return s.Protocol == TCP || s.Protocol == UDP, nil
}

// decodeTCP reads a struct tcp_info, which grows with the kernel.
func decodeTCP(b []byte) (t TCPInfo, ok bool) {
	if len(b) < leastInfo {
		return t, false
	}
	e := binary.NativeEndian
	micros := func(at int) time.Duration { return time.Duration(e.Uint32(b[at:])) * time.Microsecond }
	long := func(at int) time.Duration { // at most 2^63 ns, so that adding some of them is safe
		return time.Duration(min(e.Uint64(b[at:]), 1<<50)) * time.Microsecond
	}
	t = TCPInfo{
		RTT: micros(68), RTTVar: micros(72), Retransmits: e.Uint32(b[100:]),
		Sent: e.Uint64(b[120:]), Received: e.Uint64(b[128:]),
		SegmentsSent: e.Uint32(b[136:]), SegmentsReceived: e.Uint32(b[140:]),
		LastAck: time.Duration(e.Uint32(b[56:])) * time.Millisecond,
		Busy:    long(168), ReceiverWindow: long(176), SendBuf: long(184),
	}
	if len(b) >= sentInfo { // bytes_acked, above, lacks what is on its way
		if sent, again := e.Uint64(b[200:]), e.Uint64(b[208:]); sent >= again {
			t.Sent = sent - again
		}
	}
	return t, true
}
