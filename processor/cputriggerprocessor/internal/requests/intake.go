// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

const (
	// maxSources limits the known resources. When the limit is reached, a new resource
	// replaces a resource that matches no unit or has been idle for idleAfter. If there
	// is no such resource, the telemetry of the new resource is not counted.
	maxSources = 4096
	idleAfter  = time.Minute

	// maxSourcesOfUnit limits the resources of one unit, so that one
	// unit cannot use up maxSources. When the limit is reached, a
	// new resource replaces the unit's oldest resource.
	maxSourcesOfUnit = 256
	lookAt           = 8 // number of sources that are considered for replacement

	// maxWaiting limits the queue of unit lookups. If the queue is full, the resource's
	// next batch requests the lookup again.
	maxWaiting = 1024

	// recheckAfter is the time after which the unit of a resource is looked up again. By
	// then, the resource's pid may belong to another process.
	recheckAfter = 30 * time.Second

	// maxWindows limits the number of windows with a distribution. Such a window takes at
	// most 12 KiB. The number of units is therefore at most maxWindows divided by the
	// number of distributions per unit. Resources of further units match no unit.
	maxWindows = 4096

	// maxURIResults limits the cached results for routes and paths. A full cache is
	// cleared.
	maxURIResults = 8192
	// maxURI limits the bytes of a route or path that are compared with patterns. The rest
	// is ignored. A regular expression may take 100 µs for a path of 8 KiB.
	maxURI = 256

	// maxAhead and maxLate limit how far the time of a span or point may be from this
	// host's clock. Telemetry beyond these limits was delayed or has a wrong clock, so it
	// does not describe the present.
	maxAhead = time.Minute
	maxLate  = 5 * time.Minute

	// maxKeptText limits the bytes of each attribute that identifies a unit.
	// maxKeptAttributes limits the bytes of all attributes of a resource that are kept for
	// match and exclude.
	maxKeptText       = 1024
	maxKeptAttributes = 4096

	// maxNamed limits the combinations of reason and service that are logged.
	maxNamed = 64
)

// Config configures an Intake.
type Config struct {
	Scope identify.Scope
	// TTL is the time after which an idle resource is forgotten.
	TTL time.Duration
	// See is called when the unit of a resource has been found. It returns false if too
	// many units are already watched.
	See      func(id identify.Identity, c identify.Claim, now time.Time) bool
	Counters interface{ AddItems(*counters.Items) }
	Now      func() time.Time
	Log      *zap.Logger
}

// Intake observes spans and metrics. It is safe for concurrent use.
type Intake struct {
	cfg     Config
	plan    atomic.Pointer[plan]
	seed    maphash.Seed
	waiting chan *source
	began   time.Time

	mu      sync.RWMutex // guards sources; released during unit lookups, so that no batch waits
	sources map[uint64]*source
	series  atomic.Int64 // number of cumulative series of all sources
	cells   atomic.Int64 // number of buckets of these series

	unitsMu sync.Mutex
	units   map[string]*unit

	join   joiner
	reader reader

	logged sync.Map         // messages that are logged once
	named  map[unnamed]bool // unmatched resources that were logged; only Run uses it
}

// unnamed is a combination of reason and service. Unmatched resources are logged once
// for each combination.
type unnamed struct {
	why     identify.Unmatched
	service string
}

// plan is the compiled form of the conditions. It is immutable except for
// its cache of URIs.
type plan struct {
	selections []selection
	ids        []string // identifiers of the selections
	queries    []query
	byKey      map[string]int
	protocols  [3]bool          // protocols of the selections that need spans
	metrics    map[string][]int // selections by the name of their metric
	patterns   []func(string) bool
	mostUnits  int

	uriMu  sync.RWMutex
	uriHas map[string]uint64
}

// New returns an Intake that ignores all telemetry until SetConditions is called.
func New(cfg Config) *Intake {
	in := &Intake{
		cfg: cfg, seed: maphash.MakeSeed(), waiting: make(chan *source, maxWaiting),
		sources: map[uint64]*source{}, units: map[string]*unit{}, named: map[unnamed]bool{}, began: cfg.Now(),
		join: joiner{at: map[pcommon.TraceID]int{}}, reader: reader{byMetric: map[string][]time.Time{}},
	}
	in.join.slow, _ = simplelru.NewLRU[string, []Slow](maxSlowOpenings, nil) // fails only for a size below 1
	in.plan.Store(&plan{})
	return in
}

// SetConditions replaces all conditions, and keeps the counts of unchanged conditions. The
// conditions must be valid. On an error, no condition changes.
func (in *Intake) SetConditions(conditions []Condition) error {
	p, err := newPlan(conditions)
	if err == nil {
		in.plan.Store(p)
	}
	return err
}

func newPlan(conditions []Condition) (*plan, error) {
	p := &plan{byKey: map[string]int{}, metrics: map[string][]int{}, uriHas: map[string]uint64{}}
	uris := map[string]uint64{}
	distributions := 0
	for _, c := range conditions {
		if _, ok := p.byKey[c.Key()]; ok {
			continue
		}
		s, id, err := p.selection(c, uris)
		if err != nil {
			return nil, err
		}
		n := slices.Index(p.ids, id)
		if n < 0 {
			n = len(p.selections)
			p.selections = append(p.selections, s)
			p.ids = append(p.ids, id)
			p.use(n)
		}
		q := query{
			key: c.Key(), selection: n, quantity: c.quantity(), percentile: c.Percentile, min: float64(max(1, c.MinRequests)),
			span: c.Span, counted: c.Counted,
		}
		if q.quantity >= metricLast {
			q.min = 1
		}
		if q.distributed() {
			p.selections[n].values = true
			distributions++
		}
		p.byKey[q.key] = len(p.queries)
		p.queries = append(p.queries, q)
	}
	p.mostUnits = maxWindows / max(1, distributions)
	return p, nil
}

// selection returns the selection of a condition, and an identifier of the selection.
func (p *plan) selection(c Condition, uris map[string]uint64) (s selection, id string, err error) {
	s.protocol = kinds[c.Monitor].protocol
	if s.protocol == noProtocol {
		s.metric, s.quantity = c.Metric, c.quantity()
		for _, key := range slices.Sorted(maps.Keys(c.Attributes)) {
			s.attributes = append(s.attributes, attribute{key, c.Attributes[key]})
		}
		return s, fmt.Sprintf("%q %q %d", s.metric, s.attributes, s.quantity), nil
	}
	s.methods = sorted(c.Methods)
	s.statuses, _ = statusesOf(s.protocol, c.Statuses) // Validate has checked them
	if len(c.URI.List) > 0 || c.URI.Regex != "" {
		pattern := fmt.Sprintf("%q %q", sorted(c.URI.List), c.URI.Regex)
		bit, ok := uris[pattern]
		if !ok {
			if len(p.patterns) == 64 {
				return s, "", fmt.Errorf("policies have more than 64 different uri")
			}
			bit = 1 << len(p.patterns)
			uris[pattern] = bit
			p.patterns = append(p.patterns, matcher(c.URI.List, c.URI.Regex))
		}
		s.uri = bit
	}
	return s, fmt.Sprintf("%d %d %q %v", s.protocol, s.uri, s.methods, s.statuses), nil
}

// matcher returns a function that reports whether a string matches one of the globs or the
// regular expression. The patterns must be valid.
func matcher(uris []string, regex string) func(string) bool {
	var re *regexp.Regexp
	if regex != "" {
		re = regexp.MustCompile(regex)
	}
	return func(s string) bool {
		return re != nil && re.MatchString(s) ||
			slices.ContainsFunc(uris, func(glob string) bool { return globs.Match(glob, s) })
	}
}

// use registers the spans and metrics that a new selection needs.
func (p *plan) use(n int) {
	s := &p.selections[n]
	if s.protocol == noProtocol {
		p.metrics[s.metric] = append(p.metrics[s.metric], n)
		return
	}
	p.protocols[s.protocol] = true
	for name, c := range conventions {
		if c.of == s.protocol {
			p.metrics[name] = append(p.metrics[name], n)
		}
	}
}

// matchesOf returns the bits of the patterns that the route or the path of a request
// matches.
func (p *plan) matchesOf(r *request) uint64 { return p.matches(r.route) | p.matches(r.path) }

// matches returns the bits of the patterns that a route or path matches.
func (p *plan) matches(uri string) (bits uint64) {
	if len(p.patterns) == 0 || uri == "" {
		return 0
	}
	uri = uri[:min(len(uri), maxURI)]
	p.uriMu.RLock()
	bits, ok := p.uriHas[uri]
	p.uriMu.RUnlock()
	if ok {
		return bits
	}
	for i, match := range p.patterns {
		if match(uri) {
			bits |= 1 << i
		}
	}
	p.uriMu.Lock()
	if len(p.uriHas) >= maxURIResults {
		clear(p.uriHas)
	}
	p.uriHas[strings.Clone(uri)] = bits
	p.uriMu.Unlock()
	return bits
}

// source is a resource that sends telemetry. Telemetry that arrives before the unit is
// known is added to the unit later.
type source struct {
	key   uint64
	claim identify.Claim

	mu        sync.Mutex // guards the rest
	plan      *plan
	gone      bool        // the source was removed from Intake.sources
	unit      *unit       // nil: the unit was not looked up yet, or the resource has no unit
	unmatched bool        // the resource has no unit
	gaveWay   atomic.Bool // a newer source replaced this source; the next lookup adds it again
	last      time.Time   // when telemetry last arrived
	checked   time.Time   // when the lookup of its unit was last requested or done
	counts    []counts    // by selection
	streams   *streams    // cumulative metrics; nil before the first cumulative point
	stable    [3]bool     // by protocol: a metric of the stable convention was seen
}

// counts contains the counts of a source for one selection.
type counts struct {
	tally  tally
	spread spread
	last   gauges
	// byMetric is the time until which metrics are counted instead of spans. The metrics
	// come from this source, or from another source of the same service in the unit.
	byMetric time.Time
}

// source returns the source of a resource. The source is locked and ready to count
// telemetry. If necessary, source requests the lookup of the unit. It returns nil if
// there are too many resources.
func (in *Intake) source(resource pcommon.Map, now time.Time) *source {
	key := in.hash(resource)
	in.mu.RLock()
	s := in.sources[key]
	in.mu.RUnlock()
	if s == nil {
		if s = in.addSource(key, resource, now); s == nil {
			in.logBad("there are too many resources")
			return nil
		}
	}
	s.mu.Lock()
	s.last = now
	if !s.unmatched {
		s.adopt(in.plan.Load())
	}
	if now.Sub(s.checked) > recheckAfter {
		select {
		case in.waiting <- s:
			s.checked = now
		default:
		}
	}
	return s
}

// adopt switches a source to a plan. It keeps the counts of unchanged selections.
func (s *source) adopt(p *plan) {
	if s.plan == p {
		return
	}
	next := make([]counts, len(p.selections))
	if s.plan != nil {
		for i, id := range p.ids {
			if from := slices.Index(s.plan.ids, id); from >= 0 {
				next[i] = s.counts[from]
				s.counts[from].last = gauges{} // the new slice owns the gauges now
			}
		}
	}
	s.release()
	s.plan, s.counts = p, next
}

// release discards all counts. The caller holds the source's lock.
func (s *source) release() {
	for i := range s.counts {
		s.counts[i].last.release()
	}
	s.plan, s.counts = nil, nil
}

func (in *Intake) addSource(key uint64, resource pcommon.Map, now time.Time) *source {
	claim := identify.ClaimOf(resource)
	claim.Attributes = keep(resource)
	for _, text := range []*string{
		&claim.ContainerID, &claim.Cgroup, &claim.PodUID, &claim.ContainerName, &claim.HostName, &claim.HostID,
		&claim.ExecutablePath, &claim.ExecutableName, &claim.Service, &claim.ServiceNamespace,
	} {
		if len(*text) > maxKeptText { // no name on this host is that long
			*text = ""
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if s := in.sources[key]; s != nil {
		return s
	}
	if len(in.sources) >= maxSources && !in.makeRoom(now) {
		return nil
	}
	s := &source{key: key, claim: claim, last: now}
	in.sources[key] = s
	return s
}

// keep copies the attributes of a resource that the settings match and exclude may
// need. The size of the copy is limited to maxKeptAttributes.
func keep(resource pcommon.Map) pcommon.Map {
	out, room := pcommon.NewMap(), maxKeptAttributes
	for k, v := range resource.All() {
		size := len(k) + 8
		switch v.Type() {
		case pcommon.ValueTypeStr:
			size += len(v.Str())
		case pcommon.ValueTypeInt, pcommon.ValueTypeBool, pcommon.ValueTypeDouble:
		default:
			continue
		}
		if size <= room {
			room -= size
			v.CopyTo(out.PutEmpty(k))
		}
	}
	return out
}

// makeRoom removes one source to make room for another. It reports whether
// a source could be removed.
func (in *Intake) makeRoom(now time.Time) bool {
	looked := 0
	for key, s := range in.sources { // in random order
		if looked++; looked > lookAt {
			return false
		}
		if !s.mu.TryLock() { // the source is in use; waiting for it would block all other batches
			continue
		}
		if !s.unmatched && !s.gaveWay.Load() && now.Sub(s.last) < idleAfter {
			s.mu.Unlock()
			continue
		}
		in.forget(s)
		s.mu.Unlock()
		delete(in.sources, key)
		return true
	}
	return false
}

// forget releases the counts, the streams and the unit of a source. The caller holds the
// source's lock.
func (in *Intake) forget(s *source) {
	s.gone = true
	s.release()
	in.forgetStreams(s)
	if s.unit != nil {
		s.unit.remove(s)
		s.unit = nil
	}
}

// hash returns a hash of the attributes that does not depend on their order.
func (in *Intake) hash(resource pcommon.Map) (sum uint64) {
	for k, v := range resource.All() {
		h := maphash.String(in.seed, k)
		switch v.Type() {
		case pcommon.ValueTypeStr:
			h ^= mix(maphash.String(in.seed, v.Str()) + 1)
		case pcommon.ValueTypeInt:
			h ^= mix(uint64(v.Int()) + 2)
		case pcommon.ValueTypeBool:
			if v.Bool() {
				h ^= mix(3)
			}
		case pcommon.ValueTypeDouble:
			h ^= mix(maphash.Comparable(in.seed, v.Double()))
		}
		sum += mix(h)
	}
	return sum
}

// mix is the finalizer of MurmurHash3.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// sweepEvery is the interval at which idle sources are removed.
const sweepEvery = 10 * time.Second

// Run looks up the units of resources, and removes idle sources, until the context ends.
func (in *Intake) Run(ctx context.Context, host identify.Host) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-in.waiting:
			in.identify(host, s)
		case <-tick.C:
			in.sweep(in.cfg.Now())
		}
	}
}

// identify looks up the unit of a source. It holds no lock during the lookup.
func (in *Intake) identify(host identify.Host, s *source) {
	now := in.cfg.Now()
	id, why := identify.Match(host, in.cfg.Scope, s.claim, now)
	var u *unit
	if why == "" {
		if u = in.unit(id.Name, now); u == nil || !in.cfg.See(id, s.claim, now) {
			u, why = nil, identify.TooManyUnits
		}
	}
	var lost counters.Items
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	s.checked = now
	if s.unit != u || s.gaveWay.Swap(false) {
		if s.unit != nil {
			s.unit.remove(s)
		}
		if u != nil {
			u.add(s)
		}
		s.unit = u
	}
	if s.unmatched = why != ""; !s.unmatched {
		return
	}
	for i := range s.counts {
		lost[counters.ItemUnmatched] += s.counts[i].tally.items
	}
	s.release()
	in.forgetStreams(s)
	in.cfg.Counters.AddItems(&lost)
	in.logUnmatched(s.claim, why)
}

// logUnmatched logs that requests match no unit. It logs each combination
// of reason and service once.
func (in *Intake) logUnmatched(claim identify.Claim, why identify.Unmatched) {
	of := unnamed{why, shorten(claim.Service)}
	switch {
	case in.named[of]:
	case len(in.named) < maxNamed:
		in.named[of] = true
		in.cfg.Log.Info("requests match no unit", zap.String("why", string(why)),
			zap.String(attr.ServiceName, of.service), zap.String(attr.ContainerID, shorten(claim.ContainerID)), zap.String(attr.PodUID, shorten(claim.PodUID)),
			zap.Int(attr.PID, claim.PID), zap.String(attr.ExecutableName, shorten(claim.ExecutableName)), zap.String(attr.HostName, shorten(claim.HostName)))
	case in.first("unnamed"):
		in.cfg.Log.Info("requests of further services match no unit: they are counted and not logged", zap.Int("logged", maxNamed))
	}
}

func shorten(s string) string { return truncate.Cut(s, 256) }

// first reports whether it is called with this string for the first time. If so, the caller
// logs the string.
func (in *Intake) first(what string) bool {
	_, logged := in.logged.LoadOrStore(what, true)
	return !logged
}

// sweep removes sources that sent no telemetry for TTL, and units without sources.
func (in *Intake) sweep(now time.Time) {
	in.mu.RLock()
	all := slices.Collect(maps.Values(in.sources))
	in.mu.RUnlock()
	for _, s := range all {
		s.mu.Lock()
		idle := now.Sub(s.last) > in.cfg.TTL
		if idle {
			in.forget(s)
		} else if s.streams != nil {
			in.sweepStreams(s, now)
		}
		s.mu.Unlock()
		if idle {
			in.mu.Lock()
			delete(in.sources, s.key)
			in.mu.Unlock()
		}
	}
	in.unitsMu.Lock()
	defer in.unitsMu.Unlock()
	for name, u := range in.units {
		if u.idle(now.Add(-in.cfg.TTL)) {
			delete(in.units, name)
		}
	}
}

// unit returns the unit with a name, and adds the unit if it is new. It returns nil if
// there are too many units.
func (in *Intake) unit(name string, now time.Time) *unit {
	in.unitsMu.Lock()
	defer in.unitsMu.Unlock()
	u := in.units[name]
	if u == nil && len(in.units) < in.plan.Load().mostUnits {
		u = &unit{began: now, used: now}
		in.units[name] = u
	}
	return u
}

func (in *Intake) lookup(name string) *unit {
	in.unitsMu.Lock()
	defer in.unitsMu.Unlock()
	return in.units[name]
}
