// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package peers finds the peers that units are connected to, and measures the traffic
// between a unit and each of its peers. [Follower.Look] reads the sockets in the network
// namespaces of the units. It adds the growth of the sockets' counters to the peers.
//
// A [Follower] belongs to one goroutine, but other goroutines may read its
// published results. The package identifies units by their Identity. It does
// not know policies or gates.
package peers

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/sockdiag"
)

// These limits apply to a Follower. Data beyond a limit is counted by its kind of Lost.
const (
	maxUnits      = 1000    // followed units
	maxNamespaces = 256     // open namespaces
	maxSockets    = 100_000 // sockets that one call of Look reads in all namespaces
	maxLook       = 500 * time.Millisecond
	maxClosed     = 100_000 // closed connections that one read of a namespace returns
	maxPeers      = 20_000  // separately counted peers of all units
	maxUnitPeers  = 1000    // separately counted peers of one unit
	maxListed     = 2000    // separately reported peers of all units
	maxUnitListed = 50      // separately reported peers of one unit

	// linger is the time for which a unit is still followed after its last request.
	linger = time.Minute

	// resolveEvery is the number of calls of Look after which the namespace of a unit is
	// looked up again. Sockets without a known owner are then also checked again.
	resolveEvery = 10

	// settling is the time for which every call of Look checks the namespace of a new
	// unit. A container joins its cgroup before it has its own namespace, and only the
	// next census counts the container in the new namespace.
	settling = censusEvery + 5*time.Second

	// missedLooks is the number of calls of Look after which a missing connection is
	// forgotten. A slow dump may miss an existing connection.
	missedLooks = 3
)

// Lost is a kind of data that was not read or not attributed.
type Lost string

// These are the kinds of lost data.
const (
	LostSockets    Lost = "sockets"    // dumps that stopped at the limit of sockets or time
	LostClosed     Lost = "closed"     // reads before which the kernel dropped closed connections
	LostUnknown    Lost = "unknown"    // closed connections that may belong to another unit
	LostPeers      Lost = "peers"      // new peers that are only counted among the others
	LostNamespaces Lost = "namespaces" // units in namespaces that are not read
	LostUnits      Lost = "units"      // units that are not followed
)

// These are the reasons why a unit has no TCP readings.
const (
	// NoRight means that the collector may not enter the unit's network namespace.
	NoRight cgroup.Unavailable = "its network namespace may not be entered: run the collector with CAP_SYS_ADMIN and CAP_SYS_PTRACE"
	// TooManyNamespaces means that maxNamespaces namespaces are already open.
	TooManyNamespaces cgroup.Unavailable = "units in too many network namespaces are followed"
	// SharedNamespace means that failures are unavailable. In a shared namespace a failed
	// connection cannot be attributed to one unit.
	SharedNamespace cgroup.Unavailable = "it shares its network namespace with other units, so that failed connections cannot be told apart"
	// NoClosed means that the kernel is older than 4.2.
	NoClosed cgroup.Unavailable = "the kernel does not report closed connections"
	// NotFollowed means that the unit's connections have not been read completely yet. The
	// usual reason is that no policy with a TCP monitor applies to the unit.
	NotFollowed monitor.Gap = "its connections are not read"
)

// Config configures a Follower.
type Config struct {
	Tree *cgroup.Tree
	Now  func() time.Time
	Log  *zap.Logger
	// Residents returns the units of this host. It is called at most every 10
	// seconds. The census uses it to find the namespaces with only one unit,
	// and the addresses of units.
	Residents func() []Resident
	// AddLost counts lost data.
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
	peers      int // number of peers of all units
	listed     int // number of listed peers of all units
	census     census
	maxSockets int             // limit for one call of Look
	logged     map[string]bool // messages that were logged

	published atomic.Pointer[published]
	asked     atomic.Bool
}

// published holds the results of the last call of Look. It is immutable.
type published struct {
	peers   map[string][]hotunitsextension.PeerReading
	figures map[owner]monitor.TCPFigures
}

// owner identifies a unit, which is either a group or a process.
type owner struct {
	group   string // id of the group
	process procfs.Process
}

// New returns a follower without units.
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

// Peers returns the readings of a unit's peers, sorted by Start. A nil Follower has none.
func (f *Follower) Peers(unit string) []hotunitsextension.PeerReading {
	if f == nil {
		return nil
	}
	f.asked.Store(true)
	return f.published.Load().peers[unit]
}

// Asked reports whether Peers was called, so that the peers of hot units are needed.
func (f *Follower) Asked() bool { return f.asked.Load() }

// TCP returns the TCP counters of a unit, for [monitor.Options]. The unit is the process p
// or the cgroup g. The other argument is zero.
func (f *Follower) TCP(g cgroup.Group, p procfs.Process) monitor.TCPFigures {
	figures, ok := f.published.Load().figures[owner{g.ID, p}]
	if !ok {
		return monitor.TCPFigures{Err: NotFollowed, FailuresErr: NotFollowed}
	}
	return figures
}

// Look reads the connections of the given units, and of units that were requested within
// the last minute.
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
	for _, ns := range f.namespaces { // in another order each time, because the last ones are skipped if a limit is reached
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

// Reads reports whether the last call of Look read a namespace.
func (f *Follower) Reads() bool { return len(f.namespaces) > 0 }

// Drain reads the connections that were closed since the last read. It must be called
// often, because the kernel keeps only a few hundred closed connections.
func (f *Follower) Drain() {
	for _, ns := range f.namespaces {
		ns.readClosed(f, sockdiag.Limits{Sockets: maxClosed, Deadline: time.Now().Add(maxLook)})
	}
}

// follow adds the requested units. It removes units that are gone, and units that were not
// requested within linger.
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
		// An open namespace outlives its container, so check the processes of the unit.
		if _, err := f.processOf(u.Identity); now.Sub(u.wanted) > linger || err != nil && isGone(err) {
			f.leave(u)
			f.peers -= len(u.peers)
			f.listed -= u.listed
			delete(f.units, name)
		}
	}
}

// leave removes a unit from its namespace.
func (f *Follower) leave(u *unit) {
	if u.ns != nil {
		u.ns.remove(u)
		u.ns = nil
	}
}

// resolve finds each unit's namespace, and the cgroup ids that identify the unit's sockets.
func (f *Follower) resolve(now time.Time) {
	for _, u := range f.units {
		if f.look < u.resolveAt {
			continue
		}
		u.resolveAt = f.look + resolveEvery
		if now.Sub(u.since) < settling {
			u.resolveAt = f.look
		}
		id, pid, err := f.namespaceOf(u.Identity)
		if err != nil && u.ns != nil && isGone(err) {
			continue // the sockets ended with the processes, and the unit will soon be removed
		}
		if err != nil || u.ns == nil || u.ns.id != id {
			f.leave(u)
			if err == nil {
				err = f.enter(u, id, pid)
			}
			if u.failed = err; err != nil {
				f.logFault(u, err)
				continue
			}
		}
		u.exclusive = u.ns.id != f.own && u.Process.PID == 0 && f.census.only(id, u.Name)
		u.ids = nil
		if u.Process.PID == 0 {
			u.ids, _ = f.cfg.Tree.IDs(u.Group)
		}
	}
}

// namespaceOf returns the namespace of a unit, and the pid of a process in it.
func (f *Follower) namespaceOf(u identify.Identity) (id procfs.Namespace, pid int, err error) {
	pid, err = f.processOf(u)
	if err != nil {
		return id, 0, err
	}
	id, err = f.procfs.Namespace(pid, "net")
	return id, pid, orNoRight(err)
}

// orNoRight replaces an error about a missing permission with NoRight.
func orNoRight(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return NoRight
	}
	return err
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

// enter adds a unit to a namespace. It opens the namespace if it is not open.
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
		return sockdiag.Open(nil)
	}
	file, is, err := f.procfs.OpenNamespace(pid, "net")
	if err != nil {
		return nil, orNoRight(err)
	}
	// The process may have ended in the meantime, and another process may have its pid.
	if again, _, err := f.namespaceOf(u.Identity); err != nil || again != id || is != id {
		_ = file.Close()
		return nil, cgroup.ErrGone
	}
	it, err := sockdiag.Open(file)
	return it, orNoRight(err)
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

// logFault logs why a unit's connections are not read. Each message is logged only once.
// Later units, and other reasons with the same message, are not logged.
func (f *Follower) logFault(u *unit, err error) {
	switch {
	case isGone(err):
	case errors.Is(err, NoRight):
		f.logOnce("only connections in the collector's own network namespace are read", zap.Error(err))
	default:
		f.logOnce("cannot read connections", zap.String("unit", u.Name), zap.Error(err))
	}
}

// logOnce logs a message only at its first occurrence.
func (f *Follower) logOnce(message string, fields ...zap.Field) {
	if !f.logged[message] {
		f.logged[message] = true
		f.cfg.Log.Warn(message, fields...)
	}
}

func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) || procfs.IsGone(err) }

// publish makes the results of Look available to other goroutines.
func (f *Follower) publish(now time.Time) {
	p := &published{
		peers:   make(map[string][]hotunitsextension.PeerReading, len(f.units)),
		figures: make(map[owner]monitor.TCPFigures, len(f.units)),
	}
	for name, u := range f.units {
		p.figures[owner{u.Group.ID, u.Process}] = u.figures(now)
		if u.ns != nil {
			p.peers[name] = u.readings(f.census.name)
		}
	}
	f.published.Store(p)
}

// census contains the units and the addresses in each network namespace.
type census struct {
	at        time.Time
	residents map[procfs.Namespace][]Resident
	addresses map[netip.Addr]Resident
	cgroups   map[uint64]Resident // by the kernel's cgroup id, for units with a cgroup of their own
}

const (
	censusEvery   = 10 * time.Second
	maxCensus     = time.Second // maximum duration of a census; units that are left are omitted
	maxResidents  = 64          // units, and also addresses, per namespace
	maxAddresses  = 4096
	maxFileOfNets = 1 << 20 // bytes of a file with addresses
)

// take takes a new census if the last census is older than censusEvery.
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
		id, pid, err := f.namespaceOf(r.Identity)
		if err != nil || r.Group.PodUID != "" && f.isPause(pid) {
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
		// Addresses of the host, or of a pod with several containers, belong to several
		// units.
		if id == f.own || len(c.residents[id]) != 1 || len(c.addresses) >= maxAddresses {
			continue
		}
		for _, a := range f.addressesOf(pid) {
			c.addresses[a] = c.residents[id][0]
		}
	}
}

// isPause reports whether a process is a pod's pause container. Such a process only holds
// the pod's namespaces.
func (f *Follower) isPause(pid int) bool {
	comm, err := procfs.ReadFile(f.procfs.File(pid, "comm"), 64)
	return err == nil && string(comm) == "pause\n"
}

// only reports whether a unit is the only unit in a namespace.
func (c *census) only(id procfs.Namespace, unit string) bool {
	in := c.residents[id]
	return len(in) == 1 && in[0].Name == unit
}

// name returns the unit and the service of a peer if the peer is a unit of this host.
// Such a unit has the peer's address, or listens on the peer's port on a loopback address
// of the same network namespace.
func (c *census) name(ns *namespace, k key) (unit, service string) {
	r, ok := c.addresses[k.addr]
	if !ok && k.outbound && k.addr.IsLoopback() {
		r = c.cgroups[ns.makers[k.port]]
	}
	return r.Name, r.Service
}

// addressesOf returns the addresses of the network namespace of a process. Loopback and
// link-local unicast addresses are omitted.
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

// localIPv4 calls add for each local address in a fib_trie file. The line "|-- ADDRESS"
// precedes the line "/32 host LOCAL".
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

// localIPv6 calls add for each address in an if_inet6 file. Each line begins with an
// address of 32 hexadecimal digits.
func localIPv6(text string, add func(netip.Addr)) {
	for line := range strings.Lines(text) {
		b, err := hex.DecodeString(line[:min(len(line), 32)])
		if err == nil && len(b) == 16 {
			add(netip.AddrFrom16([16]byte(b)).Unmap())
		}
	}
}
