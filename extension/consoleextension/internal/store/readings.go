// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/series"
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

// packer and unpacker compress and decompress all blocks. EncodeAll and DecodeAll may be
// called concurrently.
var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(64<<10), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(8<<20), zstd.WithDecoderConcurrency(1))
)

// readBlock decodes a block of readings, and calls add for each point.
func readBlock(data []byte, add func(condition int, p series.Point)) error {
	raw, err := unpacker.DecodeAll(data, nil)
	if err != nil {
		return err
	}
	return series.Unpack(raw, add)
}

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
	points := map[int][]series.Point{}
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
			s.queue(blocksOfReadings, insertBlock, 0, at, string(id), packer.EncodeAll(series.Pack(points), nil))
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
		_ = readBlock(data, func(i int, p series.Point) {
			if i >= len(u.Conditions) || u.Conditions[i].Seen == 0 {
				return
			}
			c := &u.Conditions[i]
			c.newest = Reading{c.Condition, time.Unix(p.At, 0), float64(p.Mean), series.Known(c.newest.Threshold, float64(p.Threshold))}
			if u.seen = max(u.seen, at); c.newest.At.After(u.Last) {
				u.Last = c.newest.At
			}
			c.Seen = u.seen
		})
	}, "SELECT at, unit, data FROM blocks WHERE tier = 0 AND at > (SELECT max(at) FROM blocks WHERE tier = 0) - ? ORDER BY at", lively)
}

// Trends implements Reader.
func (s *Store) Trends(ctx context.Context, id UnitID, from, to time.Time, points int) ([]Trend, error) {
	s.mu.RLock()
	u := s.units[id]
	if u == nil {
		s.mu.RUnlock()
		return nil, ErrNotFound
	}
	all := map[int][]series.Stepped{}
	add := func(tier int) func(int, series.Point) {
		return func(condition int, p series.Point) {
			if at := time.Unix(p.At, 0); within(at, from, to) {
				all[condition] = append(all[condition], series.Stepped{Point: p, Step: tiers[tier].step})
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
			t := Trend{Condition: name}
			for _, p := range series.Draw(list, from, to, points) {
				t.Points = append(t.Points, Point{time.Unix(p.At, 0), float64(p.Min), float64(p.Mean), float64(p.Max), float64(p.Threshold)})
			}
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Trend) int { return compareConditions(a.Condition, b.Condition) })
	return out, nil
}
