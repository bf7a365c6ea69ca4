// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// tier describes the blocks of one age group. The time of a thinned block is the start
// of the block, which is a multiple of span. The time of any other block is the time
// when the block was written.
type tier struct {
	span int64 // length of a block, in seconds
	step int64 // length of a point, in seconds; 0 if each reading is a point
	keep int64 // seconds after which a block is thinned into the next tier
}

// tiers lists the tiers. The first tier contains unthinned readings, the next two tiers
// contain thinned readings, and the last tier contains peers.
var tiers = [...]tier{
	{span: 60, keep: 3600},
	{span: 1800, step: 60, keep: 6 * 3600},
	{span: 3 * 3600, step: 300},
	peerTier: {span: 60},
}

// peerTier is the tier of the blocks of peers.
const peerTier = 3

// These are the keys of Usage.Dropped that concern blocks.
const (
	blocksOfReadings = "blocks of readings"
	blocksOfPeers    = "blocks of peers"
)

// maxBlocks is the maximum number of blocks of a tier that a query reads. The
// newest blocks are read first.
const maxBlocks = 4096

// insertBlock writes a block: its tier, time, unit and data.
const insertBlock = "INSERT OR REPLACE INTO blocks (tier, at, unit, data) VALUES (?, ?, ?, ?)"

// readBlocks calls f for each block of a unit in a tier. If there are more than maxBlocks
// blocks, it reads only the newest blocks. Because the index groups the blocks by time,
// the query steps back from one block time to the previous one. It looks up the unit at
// each block time.
func (s *Store) readBlocks(ctx context.Context, tier int, unit UnitID, f func(data []byte)) error {
	var data []byte
	return s.db.each(ctx, []any{&data}, func() { f(data) }, `WITH RECURSIVE times(at) AS (
		SELECT max(at) FROM blocks WHERE tier = ?1
		UNION ALL SELECT (SELECT max(at) FROM blocks WHERE tier = ?1 AND at < times.at) FROM times WHERE times.at IS NOT NULL
	) SELECT data FROM times JOIN blocks ON blocks.tier = ?1 AND blocks.at = times.at AND blocks.unit = ?2 LIMIT ?3`, tier, unit, maxBlocks)
}

// encodeHeads moves the readings of all units into blocks. The blocks have the order of
// their index, which makes the write cheap.
func (s *Store) encodeHeads(at int64) {
	points := map[int][]point{}
	for _, id := range slices.Sorted(maps.Keys(s.units)) {
		clear(points)
		u := s.units[id]
		for i := range u.Conditions {
			if c := &u.Conditions[i]; len(c.head) > 0 {
				points[i] = c.head
				c.head = c.head[:0]
			}
		}
		if len(points) > 0 {
			s.queue(blocksOfReadings, insertBlock, 0, at, string(id), packBlock(points))
		}
	}
	s.heads = 0
}

// loadNewest loads the newest readings of units from the database. It also loads the
// time when each unit was last seen.
func (s *Store) loadNewest() error {
	var at int64
	var id UnitID
	var data []byte
	return s.db.each(context.Background(), []any{&at, &id, &data}, func() {
		u := s.units[id]
		if u == nil {
			return
		}
		_ = readBlock(data, func(i int, p point) {
			if i >= len(u.Conditions) || u.Conditions[i].Seen == 0 {
				return
			}
			c := &u.Conditions[i]
			c.newest = Reading{c.Condition, time.Unix(p.at, 0), float64(p.mean), known(c.newest.Threshold, float64(p.threshold))}
			if u.seen = max(u.seen, at); c.newest.At.After(u.Last) {
				u.Last = c.newest.At
			}
			c.Seen = u.seen
		})
	}, "SELECT at, unit, data FROM blocks WHERE tier = 0 AND at > (SELECT max(at) FROM blocks WHERE tier = 0) - ? ORDER BY at", lively)
}

// stepped is a point with its tier.
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
	for i, c := range u.Conditions {
		if c.Seen == 0 {
			continue
		}
		names[i] = c.Condition
		for _, p := range c.head {
			add(0)(i, p)
		}
	}
	s.mu.RUnlock()
	for i := range tiers[:peerTier] {
		if err := s.readBlocks(ctx, i, id, func(data []byte) {
			if readBlock(data, add(i)) != nil {
				s.drop("damaged", 1)
			}
		}); err != nil {
			return nil, fmt.Errorf("read the trends of a unit: %w", err)
		}
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

// trend returns at most n points of a condition's readings. If n is
// 0, it returns all points.
func trend(list []stepped, from, to time.Time, n int) []Point {
	slices.SortStableFunc(list, func(a, b stepped) int { return cmp.Compare(a.at, b.at) })
	gaps := gapsOf(list)
	n = cmp.Or(max(n, 0), math.MaxInt32)
	out := sketch(list, gaps, from, to, n)
	if len(out) > n {
		out = sketch(list, gaps, from, to, n/2)
	}
	return out
}

// gapsOf returns the gap limit of each tier, in seconds. If two points are further apart
// than the limit, there is a gap between them. The limit is three times the median distance
// of the readings, plus 5 seconds. In a thinned tier, one step is added. Points with the
// same time are two parts of a reading, or a reading that arrived twice.
func gapsOf(list []stepped) (gaps [peerTier]int64) {
	var distances [peerTier][]int64
	for i := 1; i < len(list); i++ {
		if t, d := list[i].tier, list[i].at-list[i-1].at; t == list[i-1].tier && d > 0 {
			distances[t] = append(distances[t], d/max(int64(list[i].count), 1))
		}
	}
	usual := int64(10)
	for t := range distances {
		if d := distances[t]; len(d) > 0 {
			slices.Sort(d)
			usual = d[len(d)/2]
		}
		gaps[t] = tiers[t].step + 3*usual + 5
	}
	return gaps
}

// sketch merges points into n spans of equal length, and marks gaps.
func sketch(list []stepped, gaps [peerTier]int64, from, to time.Time, n int) []Point {
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

// merge merges two points. b is the later point.
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

// thinOut merges all points of the same step into one point.
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
