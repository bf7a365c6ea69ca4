// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// kind is the kind of event that a tracepoint reports.
type kind uint8

const (
	sent kind = iota
	received
	connects
	failures
)

// source is a sampled tracepoint of a session, with the fields of its records.
type source struct {
	kind kind
	// size is the typical number of bytes of a call, or 1 for connects. every is the
	// initial number of calls per sample of a new target.
	size  float64
	every int

	ret, family, protocol            tracefs.Field // of sent and received
	socket, port, address4, address6 tracefs.Field // of connects and failures
}

// sources contains the tracepoints of the running kernel.
type sources struct {
	tracepoints []perfevent.Tracepoint
	of          []source
	// missing lists the types that cannot be sampled, with the reason.
	missing []string
}

// These numbers are part of the kernel's user-space interface.
const (
	familyUnix  = 1  // AF_UNIX
	familyIPv4  = 2  // AF_INET
	familyIPv6  = 10 // AF_INET6
	protocolTCP = 6
	protocolUDP = 17
	// protocolMPTCP is specific to Linux. It is not an IP protocol number.
	protocolMPTCP = 262
	stateSynSent  = 2 // enum tcp_state
	stateClose    = 7
	messagePeek   = 2 // MSG_PEEK
)

// classes are the size classes of calls. Each class has separate events, which cost time
// in every call, so there are only a few classes. least is the minimum size of a class,
// and typical is a typical size. every is the initial number of calls per sample of a new
// target. For small calls, every is above 1, because the reader may be late on a busy
// host.
var classes = [...]struct{ least, typical, every int }{{1, 64, 61}, {256, 1 << 10, 5}, {4 << 10, 16 << 10, 1}, {64 << 10, 128 << 10, 1}}

const (
	// targetEvents is the number of perf events per target and CPU. everywhereEvents is the
	// number of additional events per CPU.
	targetEvents     = 2*len(classes) + 1
	everywhereEvents = 1
)

// findSources finds the tracepoints in the tracefs below root. It returns an error if there
// is no tracefs, or if all tracepoints are missing.
func findSources(root string) (*sources, error) {
	f, err := tracefs.Find(root)
	if err != nil {
		return nil, err
	}
	s := &sources{}
	absent := func(what, name, since string, err error) {
		why := err.Error()
		if errors.Is(err, fs.ErrNotExist) {
			why = fmt.Sprintf("this kernel has no tracepoint %s (%s and newer do)", name, since)
		}
		s.missing = append(s.missing, what+": "+why)
	}
	if err := s.addCalls(f, sent, "sock:sock_send_length", fmt.Sprintf("(family == %d || family == %d || family == %d)", familyIPv4, familyIPv6, familyUnix)); err != nil {
		absent(samples.NetSent.Name, "sock:sock_send_length", "Linux 6.3", err)
	}
	if err := s.addCalls(f, received, "sock:sock_recv_length", fmt.Sprintf("!(flags & %d) && (family == %d || family == %d || family == %d)", messagePeek, familyIPv4, familyIPv6, familyUnix)); err != nil {
		absent(samples.NetReceived.Name, "sock:sock_recv_length", "Linux 6.3", err)
	}
	if err := s.addConnects(f, "sock:inet_sock_set_state"); err != nil {
		absent(samples.TCPConnects.Name, "sock:inet_sock_set_state", "Linux 4.16", err)
	}
	if len(s.of) == 0 {
		return nil, errors.New(strings.Join(s.missing, "\n"))
	}
	return s, nil
}

// addCalls adds one tracepoint for each size class of the calls. The tracepoints sample only
// calls on sockets that match filter.
func (s *sources) addCalls(f tracefs.FS, of kind, name, filter string) error {
	id, fields, err := f.Tracepoint(name, "ret", "family", "protocol", "flags")
	if err != nil {
		return err
	}
	for i, class := range classes {
		sizes := fmt.Sprintf("ret >= %d", class.least)
		if i+1 < len(classes) {
			sizes += fmt.Sprintf(" && ret < %d", classes[i+1].least)
		}
		s.tracepoints = append(s.tracepoints, perfevent.Tracepoint{ID: id, Filter: sizes + " && " + filter, Every: class.every})
		s.of = append(s.of, source{kind: of, size: float64(class.typical), every: class.every, ret: fields[0], family: fields[1], protocol: fields[2]})
	}
	return nil
}

// addConnects adds the sources for connects and for failed connects.
func (s *sources) addConnects(f tracefs.FS, name string) error {
	id, fields, err := f.Tracepoint(name, "skaddr", "dport", "daddr", "daddr_v6", "oldstate", "newstate", "protocol")
	if err != nil {
		return err
	}
	of := source{kind: connects, size: 1, every: 1, socket: fields[0], port: fields[1], address4: fields[2], address6: fields[3]}
	s.tracepoints = append(s.tracepoints, perfevent.Tracepoint{
		ID: id, Filter: fmt.Sprintf("newstate == %d && protocol == %d", stateSynSent, protocolTCP),
	})
	s.of = append(s.of, of)
	of.kind = failures
	s.tracepoints = append(s.tracepoints, perfevent.Tracepoint{
		ID: id, Filter: fmt.Sprintf("oldstate == %d && newstate == %d && protocol == %d", stateSynSent, stateClose, protocolTCP), Everywhere: true,
	})
	s.of = append(s.of, of)
	return nil
}

// sampled returns the names of the sampled types.
func (s *sources) sampled() (names []string) {
	for _, of := range s.of {
		if name := of.kind.sampleType().Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (k kind) sampleType() *samples.Type {
	return [...]*samples.Type{samples.NetSent, samples.NetReceived, samples.TCPConnects, samples.TCPConnectFailures}[k]
}

// transport returns the transport protocol of the call's socket.
func (s *source) transport(record []byte) samples.Transport {
	if family, _ := s.family.Int(record); family == familyUnix {
		return samples.TransportUnix
	}
	switch protocol, _ := s.protocol.Int(record); protocol {
	case protocolTCP, protocolMPTCP:
		return samples.TransportTCP
	case protocolUDP:
		return samples.TransportUDP
	}
	return samples.TransportOther
}
