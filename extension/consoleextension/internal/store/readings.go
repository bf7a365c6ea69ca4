// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// tier is a bucket of blocks of readings. Its keys are the number of a span by the
// clock, and the unit: what is new is appended, and what is old is at the beginning.
type tier struct {
	name []byte
	span int64 // seconds of a block
	step int64 // seconds of a point; 0: each reading
	keep int64 // seconds after which a block is thinned into the next tier
}

// tiers are the readings as they came, then those that were thinned.
var tiers = [...]tier{
	{name: []byte("readings.1"), span: 60, keep: 3600},
	{name: []byte("readings.1m.1"), span: 1800, step: 60, keep: 6 * 3600},
	{name: []byte("readings.5m.1"), span: 3 * 3600, step: 300, keep: math.MaxInt64},
}

const (
	// maxBlocks bounds the blocks of a tier that a query reads, the newest. There are
	// more only if they could not be thinned.
	maxBlocks = 512
	// unitsAtOnce bounds the units whose readings are thinned in one transaction.
	unitsAtOnce = 256
	// appending is the share to which pages are filled that are written once.
	appending = 0.95
)

func blockKey(span int64, unit []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(span)), unit...)
}

// spanOf returns the number of the span of a key.
func spanOf(key []byte) int64 {
	if len(key) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(key))
}

// spans returns all buckets whose keys are spans.
func spans() []tier { return append(tiers[:len(tiers):len(tiers)], peerTier) }

// bucket returns the bucket of a tier.
func (t tier) bucket(tx *bolt.Tx) (*bolt.Bucket, error) {
	b := tx.Bucket(t.name)
	if b == nil {
		return nil, fmt.Errorf("%w: no bucket %s", errDamaged, t.name)
	}
	b.FillPercent = appending
	return b, nil
}

// unitHeads are the readings of a unit that are being written.
type unitHeads struct {
	unit   *unit
	key    []byte
	series []series
	taken  []int // of each condition, by its index
}

// encodeHeads returns the readings that are not on disk.
func (s *Store) encodeHeads() []unitHeads {
	var out []unitHeads
	span := s.clock.now() / tiers[0].span
	for id, u := range s.units {
		h := unitHeads{unit: u, key: blockKey(span, id.key())}
		for i, c := range u.conditions {
			h.taken = append(h.taken, len(c.head))
			if len(c.head) == 0 {
				continue
			}
			points := make([]point, len(c.head))
			for j, p := range c.head {
				points[j] = p.point()
			}
			h.series = append(h.series, series{i, points})
		}
		if len(h.series) > 0 {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b unitHeads) int { return slices.Compare(a.key, b.key) })
	return out
}

func (h head) point() point {
	p := point{at: h.at, min: h.value, mean: h.value, max: h.value, threshold: h.threshold}
	if h.value == h.value {
		p.count = 1
	}
	return p
}

// putHeads writes readings. It adds to blocks that there are.
func putHeads(tx *bolt.Tx, all []unitHeads) error {
	b, err := tiers[0].bucket(tx)
	if err != nil {
		return err
	}
	for _, h := range all {
		add := h.series
		if was, ok := sealed(h.key, b.Get(h.key)); ok {
			points := map[int][]point{}
			if readBlock(was, collect(points)) == nil {
				for _, s := range h.series {
					points[s.condition] = append(points[s.condition], s.points...)
				}
				add = inOrder(points)
			}
		}
		if err := put(b, h.key, appendBlock(nil, add, false)); err != nil {
			return err
		}
	}
	return nil
}

// collect returns a function for readBlock.
func collect(to map[int][]point) func(int, point) {
	return func(condition int, p point) { to[condition] = append(to[condition], p) }
}

// inOrder returns series by condition, of at most maxBlockPoints points.
func inOrder(points map[int][]point) []series {
	out := make([]series, 0, len(points))
	for _, condition := range slices.Sorted(maps.Keys(points)) {
		list := points[condition]
		out = append(out, series{condition, list[max(0, len(list)-maxBlockPoints):]})
	}
	return out
}

// forgetHeads forgets readings that are on disk.
func (s *Store) forgetHeads(all []unitHeads) {
	for _, h := range all {
		if s.units[h.unit.id] != h.unit {
			continue
		}
		for i, n := range h.taken {
			c := &h.unit.conditions[i]
			n = min(n, len(c.head)) // a condition that was removed has none
			c.head = append(c.head[:0], c.head[n:]...)
			s.heads -= n
		}
	}
}

// boundHeads forgets readings that could not be written, when there are so many that new
// ones would soon have no room.
func (s *Store) boundHeads() {
	if s.heads < maxHead/2 {
		for _, u := range s.units {
			for i := range u.conditions {
				c := &u.conditions[i]
				if n := len(c.head) - maxSeriesHead/2; n > 0 {
					c.head = append(c.head[:0], c.head[n:]...)
					s.heads -= n
					s.drop("readings", n)
				}
			}
		}
		return
	}
	s.drop("readings", s.heads)
	for _, u := range s.units {
		for i := range u.conditions {
			u.conditions[i].head = nil
		}
	}
	s.heads = 0
}

// loadNewest takes the newest readings of units from the database, and when they were
// seen last.
func (s *Store) loadNewest() error {
	return s.db.view(func(tx *bolt.Tx) error {
		b, err := tiers[0].bucket(tx)
		if err != nil {
			return err
		}
		found := map[*unit]bool{}
		c := b.Cursor()
		last, _ := c.Last()
		for k, v := c.Last(); k != nil && len(found) < len(s.units) && spanOf(last)-spanOf(k) < lively/tiers[0].span; k, v = c.Prev() {
			value, ok := sealed(k, v)
			if !ok {
				continue
			}
			u := s.units[UnitID(hex.EncodeToString(k[8:]))]
			if u == nil || found[u] {
				continue
			}
			found[u] = true
			_ = readBlock(value, func(i int, p point) {
				if i >= len(u.conditions) || u.conditions[i].seen == 0 {
					return
				}
				n := &u.conditions[i].newest
				*n = Reading{u.conditions[i].Value(), time.Unix(p.at, 0), float64(p.mean), known(n.Threshold, float64(p.threshold))}
				if u.seen = max(u.seen, spanOf(k)*tiers[0].span); n.At.After(u.last) {
					u.last = n.At
				}
				u.conditions[i].seen = u.seen
			})
		}
		return nil
	})
}

// stepped is a point with the step of its tier.
type stepped struct {
	point
	tier int
}

// Trends implements Reader.
func (s *Store) Trends(ctx context.Context, id UnitID, from, to time.Time, points int) ([]Trend, error) {
	s.mu.RLock()
	u := s.units[id]
	if u == nil {
		s.mu.RUnlock()
		return nil, ErrNotFound
	}
	all := map[int][]stepped{}
	add := func(tier int) func(int, point) {
		return func(condition int, p point) {
			if at := time.Unix(p.at, 0); within(at, from, to) {
				all[condition] = append(all[condition], stepped{p, tier})
			}
		}
	}
	names := map[int]Condition{}
	for i, c := range u.conditions {
		if c.seen == 0 {
			continue
		}
		names[i] = c.Value()
		for _, h := range c.head {
			add(0)(i, h.point())
		}
	}
	s.mu.RUnlock()
	now := s.clock.now()
	err := s.db.view(func(tx *bolt.Tx) error {
		for i := range tiers {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := readTier(tx, i, id.key(), now, add(i), s.drop); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.found(err)
		return nil, fmt.Errorf("read the trends of a unit: %w", err)
	}
	var out []Trend
	for i, name := range names {
		if list := all[i]; len(list) > 0 {
			out = append(out, Trend{name, trend(list, from, to, points)})
		}
	}
	slices.SortFunc(out, func(a, b Trend) int { return compareConditions(a.Condition, b.Condition) })
	return out, nil
}

// readTier reads the blocks of a unit of a tier, but those that are being deleted for
// they are thinned already.
func readTier(tx *bolt.Tx, i int, unit []byte, now int64, add func(int, point), drop func(string, int)) error {
	t := tiers[i]
	b, err := t.bucket(tx)
	if err != nil {
		return err
	}
	thinned := func(int64) bool { return false }
	if i+1 < len(tiers) {
		next := tiers[i+1]
		in, err := next.bucket(tx)
		if err != nil {
			return err
		}
		thinned = func(span int64) bool { return in.Get(blockKey(span*t.span/next.span, unit)) != nil }
	}
	c := b.Cursor()
	first, _ := c.First()
	last, _ := c.Last()
	if first == nil {
		return nil
	}
	newest := min(spanOf(last), now/t.span) // the last key may be damaged
	for span := max(spanOf(first), newest-maxBlocks+1); span <= newest; span++ {
		key := blockKey(span, unit)
		stored := b.Get(key)
		if stored == nil || thinned(span) {
			continue
		}
		value, ok := sealed(key, stored)
		if !ok || readBlock(value, add) != nil {
			drop("damaged", 1)
		}
	}
	return nil
}

// trend returns at most n points of what was read of a condition.
func trend(list []stepped, from, to time.Time, n int) []Point {
	slices.SortStableFunc(list, func(a, b stepped) int { return cmp.Compare(a.at, b.at) })
	list = once(list)
	gaps := gapsOf(list)
	if n <= 0 {
		return sketch(list, gaps, from, to, math.MaxInt32)
	}
	out := sketch(list, gaps, from, to, n)
	if len(out) > n {
		out = sketch(list, gaps, from, to, n/2)
	}
	return out
}

// once merges the points of one time: of two halves of a reading, or of one that came
// twice.
func once(list []stepped) []stepped {
	out := list[:0]
	for _, p := range list {
		if n := len(out); n > 0 && out[n-1].at == p.at && out[n-1].tier == p.tier {
			was := out[n-1]
			p.threshold = known(was.threshold, p.threshold)
			if p.count == 0 {
				p.min, p.mean, p.max, p.count = was.min, was.mean, was.max, was.count
			}
			out[n-1] = p
			continue
		}
		out = append(out, p)
	}
	return out
}

// gapsOf returns for each tier the distance of two points, in seconds, beyond which
// there is a gap between them: three times what is usual.
func gapsOf(list []stepped) (gaps [len(tiers)]int64) {
	var distances [len(tiers)][]int64
	for i := 1; i < len(list); i++ {
		if t := list[i].tier; t == list[i-1].tier {
			distances[t] = append(distances[t], list[i].at-list[i-1].at)
		}
	}
	usual := int64(10)
	for t := range tiers {
		if d := distances[t]; len(d) > 0 {
			slices.Sort(d)
			usual = d[len(d)/2]
		}
		gaps[t] = 3*max(usual, tiers[t].step) + 5
	}
	return gaps
}

// sketch merges points into n spans of equal length, and marks gaps.
func sketch(list []stepped, gaps [len(tiers)]int64, from, to time.Time, n int) []Point {
	start, end := list[0].at, list[len(list)-1].at
	if !from.IsZero() {
		start = max(start, from.Unix())
	}
	if !to.IsZero() {
		end = min(end, to.Unix())
	}
	width := max(1, (end-start)/int64(max(n, 1))+1)
	var out []Point
	for i := 0; i < len(list); {
		first := i
		merged := list[i].point
		for i++; i < len(list) && (list[i].at-start)/width == (merged.at-start)/width; i++ {
			merged = merge(merged, list[i].point)
		}
		if first > 0 {
			if limit := gaps[list[first].tier]; list[first].at-list[first-1].at > limit {
				at := time.Unix(list[first-1].at+limit/3, 0)
				nan := math.NaN()
				out = append(out, Point{at, nan, nan, nan, nan})
			}
		}
		out = append(out, Point{
			time.Unix(merged.at, 0), float64(merged.min), float64(merged.mean), float64(merged.max), float64(merged.threshold),
		})
	}
	return out
}

// merge returns two points as one. The second is the later.
func merge(a, b point) point {
	b.threshold = known(a.threshold, b.threshold)
	if b.count == 0 {
		a.at, a.threshold = b.at, b.threshold
		return a
	}
	if a.count == 0 {
		return b
	}
	b.min, b.max = min(a.min, b.min), max(a.max, b.max)
	count := a.count + b.count
	b.mean = float32((float64(a.mean)*float64(a.count) + float64(b.mean)*float64(b.count)) / float64(count))
	b.count = count
	return b
}

// thinOut merges points into steps.
func thinOut(list []point, step int64) []point {
	slices.SortStableFunc(list, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	var out []point
	for _, p := range list {
		if n := len(out); n > 0 && (out[n-1].at-1)/step == (p.at-1)/step {
			out[n-1] = merge(out[n-1], p)
		} else {
			out = append(out, p)
		}
	}
	return out
}
