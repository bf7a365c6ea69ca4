// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package peers finds with whom units are connected, and what they exchange: at each
// look it reads the sockets of the network namespaces that units are in, and adds what
// their counters grew by to the unit's peers.
//
// A [Follower] belongs to one goroutine, except for what it publishes. The package knows
// of units by their identity, not of policies or gates.
package peers

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/sockdiag"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

// The bounds. What is beyond them is counted by Lost.
const (
	maxUnits      = 1000    // that are followed; the first ones
	maxNamespaces = 256     // that are open; the first ones
	maxSockets    = 100_000 // of one look, in all namespaces
	maxLook       = 500 * time.Millisecond
	maxClosed     = 100_000 // closed connections of one look, likewise
	maxPeers      = 20_000  // that are told apart, of all units
	maxUnitPeers  = 1000    // of one unit
	maxListed     = 2000    // with readings of their own, of all units
	maxUnitListed = 50      // of one unit

	// linger is the time for which a unit is followed after it was last asked for.
	linger = time.Minute

	// resolveEvery is the number of looks after which the namespace of a unit is
	// looked for again, and whose a socket is that was nobody's.
	resolveEvery = 10

	// settling is the time for which the namespace of a new unit is looked for each time:
	// a container enters its own after its cgroup, and the next census counts it.
	settling = censusEvery + 5*time.Second

	// missedLooks is the number of dumps without a connection after which it is
	// forgotten: a dump that takes long may miss one that exists.
	missedLooks = 3
)

// Lost is the kind of something that was not read, or not told apart.
type Lost string

// What is lost.
const (
	LostSockets    Lost = "sockets"    // dumps that ended at the bound of sockets or of time
	LostClosed     Lost = "closed"     // dumps before which the kernel dropped closed connections
	LostUnknown    Lost = "unknown"    // closed connections that may be another unit's
	LostPeers      Lost = "peers"      // new peers that are among the others
	LostNamespaces Lost = "namespaces" // units whose namespace is not read
	LostUnits      Lost = "units"      // units that are not followed
)

// The reasons why a unit has no figures.
const (
	// NoRight is for units in other network namespaces than the collector.
	NoRight cgroup.Unavailable = "its network namespace may not be entered: run the collector with CAP_SYS_ADMIN and CAP_SYS_PTRACE"
	// TooManyNamespaces is for units beyond the bound.
	TooManyNamespaces cgroup.Unavailable = "units in too many network namespaces are followed"
	// SharedNamespace is for failures, which a shared namespace does not tell apart.
	SharedNamespace cgroup.Unavailable = "it shares its network namespace with other units, so that failed connections cannot be told apart"
	// NoClosed is for kernels below 4.2.
	NoClosed cgroup.Unavailable = "the kernel does not report closed connections"
	// NotFollowed is the gap of a unit to which no policy with such a monitor applies.
	NotFollowed monitor.Gap = "its connections are not read"
)

// Config configures a Follower.
type Config struct {
	Tree *cgroup.Tree
	Now  func() time.Time
	Log  *zap.Logger
	// Residents returns the units of this host, to know which namespace is only one
	// unit's, and which addresses are units'. It is called every 10 seconds.
	Residents func() []Resident
	// AddLost counts what is lost.
	AddLost func(Lost, int)
}

// Resident is a unit of this host.
type Resident struct {
	identify.Identity
	Service string // empty: not known
}

// A Follower reads the connections of units.
type Follower struct {
	cfg    Config
	procfs procfs.FS
	own    procfs.Namespace // the collector's network namespace

	look       uint64
	units      map[string]*unit
	namespaces map[procfs.Namespace]*namespace
	peers      int // of all units
	listed     int // of all units
	census     census
	maxSockets int             // of one look
	logged     map[string]bool // faults

	published atomic.Pointer[published]
}

// published holds the results of the last look. It is not changed any more.
type published struct {
	peers     map[string][]hotunitsextension.PeerReading
	figures   map[string]monitor.TCPFigures
	processes map[procfs.Process]monitor.TCPFigures
}

// New returns a follower of no unit.
func New(cfg Config) (*Follower, error) {
	f := &Follower{
		cfg: cfg, procfs: procfs.At(cfg.Tree.Root()),
		units: map[string]*unit{}, namespaces: map[procfs.Namespace]*namespace{}, maxSockets: maxSockets, logged: map[string]bool{},
	}
	var err error
	if f.own, err = procfs.ThreadNamespace("net"); err != nil {
		return nil, fmt.Errorf("find the collector's network namespace: %w", err)
	}
	if f.procfs.OwnPID() != os.Getpid() {
		return nil, monitor.ForeignPIDs
	}
	f.published.Store(&published{})
	return f, nil
}

// Peers returns the readings of a unit's peers, sorted by Start.
func (f *Follower) Peers(unit string) []hotunitsextension.PeerReading {
	return f.published.Load().peers[unit]
}

// TCP returns the figures of a unit that is a cgroup, or else a process. It is for
// [monitor.Options].
func (f *Follower) TCP(g cgroup.Group, p procfs.Process) monitor.TCPFigures {
	now := f.published.Load()
	figures, ok := now.figures[g.ID]
	if p.PID != 0 {
		figures, ok = now.processes[p]
	}
	if !ok {
		return monitor.TCPFigures{Err: NotFollowed, FailuresErr: NotFollowed}
	}
	return figures
}

// Look reads the connections of units, and of those that were followed within the last
// minute.
func (f *Follower) Look(follow []identify.Identity) {
	now := f.cfg.Now()
	f.look++
	f.follow(follow, now)
	if len(f.units) == 0 {
		f.closeUnused()
		f.published.Store(&published{})
		return
	}
	f.census.take(f, now)
	f.resolve(now)
	f.closeUnused()
	for _, u := range f.units {
		u.fade()
	}

	sockets, deadline := f.maxSockets, time.Now().Add(maxLook)
	for _, ns := range f.inTurn() {
		n, err := ns.read(f, sockdiag.Limits{Sockets: sockets, Deadline: deadline})
		sockets = max(0, sockets-n)
		switch {
		case errors.Is(err, sockdiag.ErrTooMany), errors.Is(err, sockdiag.ErrLate):
			f.cfg.AddLost(LostSockets, 1)
			f.logOnce("not all connections read", zap.Int("sockets", n), zap.Error(err))
		case err != nil:
			f.logOnce("cannot read connections", zap.Error(err))
		}
		for _, u := range ns.units {
			u.failed = nil
			if err != nil && n == 0 {
				u.failed = err
			}
		}
	}
	for _, u := range f.units {
		f.settle(u, now)
	}
	f.publish(now)
}

// Reads reports whether the last look read a namespace.
func (f *Follower) Reads() bool { return len(f.namespaces) > 0 }

// Drain reads the connections that were closed since the last look: the kernel keeps
// some hundreds of them.
func (f *Follower) Drain() {
	for _, ns := range f.namespaces {
		ns.readClosed(f, sockdiag.Limits{Sockets: maxClosed, Deadline: time.Now().Add(maxLook)})
	}
}

// inTurn returns the namespaces, at each look another one first: at a bound, the last
// ones are not read.
func (f *Follower) inTurn() []*namespace {
	all := slices.SortedFunc(maps.Values(f.namespaces), func(a, b *namespace) int {
		return cmp.Or(cmp.Compare(a.id.Inode, b.id.Inode), cmp.Compare(a.id.Device, b.id.Device))
	})
	if len(all) == 0 {
		return nil
	}
	first := int(f.look % uint64(len(all)))
	return append(all[first:len(all):len(all)], all[:first]...)
}

// follow begins to follow units, and forgets those that nobody has asked for.
func (f *Follower) follow(follow []identify.Identity, now time.Time) {
	for _, id := range follow {
		u := f.units[id.Name]
		if u == nil {
			if len(f.units) >= maxUnits {
				f.cfg.AddLost(LostUnits, 1)
				continue
			}
			u = newUnit(id, now)
			f.units[id.Name] = u
		}
		u.wanted = now
	}
	for name, u := range f.units {
		if now.Equal(u.wanted) {
			continue
		}
		// An open namespace does not end with its container.
		if _, err := f.processOf(u.Identity); now.Sub(u.wanted) > linger || err != nil && isGone(err) {
			f.forget(u)
			delete(f.units, name)
		}
	}
}

func (f *Follower) forget(u *unit) {
	f.leave(u)
	f.peers -= len(u.peers)
	f.listed -= u.listed
}

// leave takes a unit out of its namespace.
func (f *Follower) leave(u *unit) {
	if u.ns != nil {
		u.ns.remove(u)
		u.ns = nil
	}
}

// resolve finds the namespace of each unit, and whose sockets are in it.
func (f *Follower) resolve(now time.Time) {
	for _, u := range f.units {
		if f.look < u.resolveAt {
			continue
		}
		u.resolveAt = f.look + resolveEvery
		if now.Sub(u.since) < settling {
			u.resolveAt = f.look
		}
		id, pid, err := f.namespaceOf(u)
		switch {
		case err != nil && u.ns != nil && isGone(err):
			continue // its sockets are gone with its processes, and the unit will be
		case err != nil:
			f.leave(u)
			u.failed = err
			f.logFault(u, err)
			continue
		case u.ns != nil && u.ns.id == id:
		default:
			f.leave(u)
			if err := f.enter(u, id, pid); err != nil {
				u.failed = err
				f.logFault(u, err)
				continue
			}
			u.failed = nil
		}
		u.exclusive = u.ns.id != f.own && u.Process.PID == 0 && f.census.only(id, u.Name)
		u.ids = nil
		if u.Process.PID == 0 {
			u.ids, _ = f.cfg.Tree.IDs(u.Group)
		}
	}
}

// namespaceOf returns the namespace of a process of a unit.
func (f *Follower) namespaceOf(u *unit) (id procfs.Namespace, pid int, err error) {
	pid, err = f.processOf(u.Identity)
	if err != nil {
		return id, 0, err
	}
	id, err = f.procfs.Namespace(pid, "net")
	if errors.Is(err, fs.ErrPermission) {
		err = NoRight
	}
	return id, pid, err
}

// processOf returns the pid of a process of a unit.
func (f *Follower) processOf(id identify.Identity) (int, error) {
	if id.Process.PID == 0 {
		return f.cfg.Tree.AnyProcess(id.Group)
	}
	is, err := f.procfs.Process(id.Process.PID)
	if err == nil && is.Start != id.Process.Start {
		err = cgroup.ErrGone
	}
	return id.Process.PID, err
}

// enter puts a unit into a namespace, which is opened if it is not.
func (f *Follower) enter(u *unit, id procfs.Namespace, pid int) error {
	ns := f.namespaces[id]
	if ns == nil {
		if len(f.namespaces) >= maxNamespaces {
			f.cfg.AddLost(LostNamespaces, 1)
			return TooManyNamespaces
		}
		it, err := f.open(u, id, pid)
		if err != nil {
			return err
		}
		ns = newNamespace(id, it)
		f.namespaces[id] = ns
	}
	ns.add(u)
	return nil
}

func (f *Follower) open(u *unit, id procfs.Namespace, pid int) (*sockdiag.Namespace, error) {
	if id == f.own {
		return sockdiag.Open()
	}
	file, is, err := f.procfs.OpenNamespace(pid, "net")
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, NoRight
		}
		return nil, err
	}
	// Meanwhile the process may have ended, and another may have its pid.
	if again, _, err := f.namespaceOf(u); err != nil || again != id || is != id {
		_ = file.Close()
		return nil, cgroup.ErrGone
	}
	it, err := sockdiag.OpenFile(file)
	if errors.Is(err, fs.ErrPermission) {
		return nil, NoRight
	}
	return it, err
}

// closeUnused closes the namespaces without units.
func (f *Follower) closeUnused() {
	for id, ns := range f.namespaces {
		if len(ns.units) == 0 {
			ns.it.Close()
			delete(f.namespaces, id)
		}
	}
}

// Close closes all namespaces.
func (f *Follower) Close() {
	for _, ns := range f.namespaces {
		ns.it.Close()
	}
	clear(f.namespaces)
	clear(f.units)
	f.published.Store(&published{})
}

// logFault logs why a unit's connections are not read: a reason that many units may
// have once for all of them.
func (f *Follower) logFault(u *unit, err error) {
	switch {
	case isGone(err):
	case errors.Is(err, NoRight):
		f.logOnce("only connections in the collector's own network namespace are read", zap.Error(err))
	default:
		f.logOnce("cannot read connections", zap.String("unit", u.Name), zap.Error(err))
	}
}

// logOnce logs a message at its first occurrence.
func (f *Follower) logOnce(message string, fields ...zap.Field) {
	if !f.logged[message] {
		f.logged[message] = true
		f.cfg.Log.Warn(message, fields...)
	}
}

func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) || procfs.IsGone(err) }

// publish makes what the look found visible.
func (f *Follower) publish(now time.Time) {
	p := &published{
		peers: make(map[string][]hotunitsextension.PeerReading, len(f.units)), figures: make(map[string]monitor.TCPFigures, len(f.units)),
		processes: map[procfs.Process]monitor.TCPFigures{},
	}
	for name, u := range f.units {
		figures := u.figures(now)
		if u.Process.PID != 0 {
			p.processes[u.Process] = figures
		} else {
			p.figures[name] = figures
		}
		if u.ns != nil {
			p.peers[name] = u.readings(f.census.name)
		}
	}
	f.published.Store(p)
}

// census is which units are in which network namespace, and which addresses those have.
type census struct {
	at        time.Time
	residents map[procfs.Namespace][]Resident
	addresses map[netip.Addr]Resident
	cgroups   map[uint64]Resident // by the kernel's id, where that is the unit's own
}

const (
	censusEvery   = 10 * time.Second
	maxCensus     = time.Second // units beyond it are left out
	maxResidents  = 64          // of one namespace
	maxAddresses  = 4096
	maxFileOfNets = 1 << 20 // bytes of a list of addresses
)

// take takes the census if the last one is too old.
func (c *census) take(f *Follower, now time.Time) {
	if c.residents != nil && now.Sub(c.at) < censusEvery {
		return
	}
	c.at = now
	c.residents, c.addresses, c.cgroups = map[procfs.Namespace][]Resident{}, map[netip.Addr]Resident{}, map[uint64]Resident{}
	end := time.Now().Add(maxCensus)
	pids := map[procfs.Namespace]int{}
	for _, r := range f.cfg.Residents() {
		if !time.Now().Before(end) {
			return
		}
		pid, err := f.processOf(r.Identity)
		if err != nil {
			continue
		}
		id, err := f.procfs.Namespace(pid, "net")
		if err != nil {
			continue
		}
		if r.Group.PodUID != "" && f.isPause(pid) {
			continue
		}
		if len(c.residents[id]) < maxResidents {
			c.residents[id] = append(c.residents[id], r)
		}
		pids[id] = pid
		if cgroup, ok := f.cfg.Tree.ID(r.Group); ok {
			c.cgroups[cgroup] = r
		}
	}
	for id, pid := range pids {
		// Addresses of the host, or of a pod with several containers, are not one unit's.
		if id == f.own || len(c.residents[id]) != 1 || len(c.addresses) >= maxAddresses {
			continue
		}
		for _, a := range f.addressesOf(pid) {
			c.addresses[a] = c.residents[id][0]
		}
	}
}

// isPause reports whether a process is that of a pod's pause container, which only holds
// the pod's namespaces.
func (f *Follower) isPause(pid int) bool {
	comm, err := procfs.ReadFile(f.procfs.File(pid, "comm"), 64)
	return err == nil && string(comm) == "pause\n"
}

// only reports whether a unit is the only one in a namespace.
func (c *census) only(id procfs.Namespace, unit string) bool {
	in := c.residents[id]
	return len(in) == 1 && in[0].Name == unit
}

// name returns the unit that a peer is: the one that has its address, or that listens at
// its port in the same network namespace.
func (c *census) name(ns *namespace, k key) (unit, service string) {
	r, ok := c.addresses[k.addr]
	if !ok && k.outbound && k.addr.IsLoopback() {
		r = c.cgroups[ns.makers[k.port]]
	}
	return r.Name, r.Service
}

// addressesOf returns the addresses of the network namespace of a process, without those
// of its loopback device.
func (f *Follower) addressesOf(pid int) (out []netip.Addr) {
	add := func(a netip.Addr) {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() && len(out) < maxResidents {
			out = append(out, a)
		}
	}
	if b, err := procfs.ReadFile(f.procfs.File(pid, "net/fib_trie"), maxFileOfNets); err == nil {
		localIPv4(string(b), add)
	}
	if b, err := procfs.ReadFile(f.procfs.File(pid, "net/if_inet6"), maxFileOfNets); err == nil {
		localIPv6(string(b), add)
	}
	return out
}

// localIPv4 calls add for each local address of a fib_trie: "|-- ADDRESS" is followed
// by "/32 host LOCAL".
func localIPv4(text string, add func(netip.Addr)) {
	var last netip.Addr
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch rest, ok := strings.CutPrefix(line, "|-- "); {
		case ok:
			last, _ = netip.ParseAddr(rest)
		case line == "/32 host LOCAL" && last.IsValid():
			add(last)
			last = netip.Addr{}
		}
	}
}

// localIPv6 calls add for each address of an if_inet6, which begins with 32 digits.
func localIPv6(text string, add func(netip.Addr)) {
	for line := range strings.Lines(text) {
		b, err := hex.DecodeString(line[:min(len(line), 32)])
		if err == nil && len(b) == 16 {
			add(netip.AddrFrom16([16]byte(b)).Unmap())
		}
	}
}
