// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// eventTable describes a table of events. If it has more than the given number of rows, the
// subject with the most rows loses its oldest rows, so that a noisy subject does not
// displace the events of others. Usage.Dropped counts the deleted rows.
type eventTable struct {
	name    string
	rows    int64
	dropped string
}

var (
	refusals    = eventTable{"refusals", maxRefusals, "refusals"}
	changes     = eventTable{"policy_changes", maxChanges, "policy changes"}
	startupLogs = eventTable{"startup_logs", maxLogs, "logs"}
	warnings    = eventTable{"warnings", maxLogs, "logs"}
	eventTables = []eventTable{refusals, changes, startupLogs, warnings}
)

// addEvent adds an event. subject is the ID of a unit or of a collector. Events are not in
// memory, except while they wait for the disk.
func (s *Store) addEvent(to eventTable, subject, policy, why string, event any) {
	s.awaited = true
	s.queue(to.dropped, "INSERT INTO "+to.name+" (subject, stored, policy, why, data) VALUES (?, ?, ?, ?, ?)",
		subject, s.now(), policy, why, encoded(event))
}

// eachEvent calls f for each event of a subject, newest first. If subject is empty, it
// reads the events of all subjects. If limit is 0, there is no limit.
func (s *Store) eachEvent(ctx context.Context, of eventTable, subject string, limit int, f func(subject string, data []byte) error) error {
	query, args := "SELECT subject, data FROM "+of.name, []any{}
	if subject != "" {
		query, args = query+" WHERE subject = ?", []any{subject}
	}
	if limit <= 0 {
		limit = math.MaxInt32
	}
	var data []byte
	return s.db.each(ctx, []any{&subject, &data}, func() {
		if f(subject, data) != nil {
			s.drop("damaged", 1)
		}
	}, query+" ORDER BY id DESC LIMIT ?", append(args, limit)...)
}

// boundEvents deletes events of tables that have too many. Counting the rows takes some
// milliseconds, so rows are only counted if their ids show that there may be too many.
func (s *Store) boundEvents(tx *sql.Tx) error {
	for _, t := range eventTables {
		for deleted := int64(1); deleted > 0; {
			var ids int64
			err := tx.QueryRow(fmt.Sprintf("SELECT coalesce((SELECT max(id) FROM %[1]s) - (SELECT min(id) FROM %[1]s), 0)", t.name)).Scan(&ids)
			if err == nil && ids < t.rows {
				break
			}
			if err == nil {
				// The largest subject loses at most half of the surplus, and then the next one.
				deleted, err = s.deleteRows(tx, t.dropped, fmt.Sprintf(`DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s WHERE subject = (
SELECT subject FROM %[1]s GROUP BY subject ORDER BY count(*) DESC LIMIT 1) ORDER BY id LIMIT (
SELECT max(0, (count(*) - %[2]d + 1) / 2) FROM %[1]s))`, t.name, t.rows))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetEvents deletes the oldest tenth of the events of each table.
func (s *Store) forgetEvents(tx *sql.Tx) error {
	for _, t := range eventTables {
		if _, err := s.deleteRows(tx, t.dropped, fmt.Sprintf("DELETE FROM %[1]s WHERE id <= (SELECT min(id) + (max(id) - min(id)) / 10 FROM %[1]s)", t.name)); err != nil {
			return err
		}
	}
	return nil
}

// countRefusals counts the refusals of each unit by policy and reason.
func (s *Store) countRefusals() error {
	counts := map[UnitID]map[[2]string]int{}
	var id UnitID
	var by [2]string
	var n int
	if err := s.db.each(context.Background(), []any{&id, &by[0], &by[1], &n}, func() {
		if counts[id] == nil {
			counts[id] = map[[2]string]int{}
		}
		counts[id][by] = n
	}, "SELECT subject, policy, why, count(*) FROM refusals GROUP BY subject, policy, why"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range s.units {
		u.refused = counts[id]
	}
	return nil
}

// PutRefusal adds a refusal. It uses Host, Name and Resource of the unit.
func (s *Store) PutRefusal(r Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.unit(r.Unit)
	if u == nil {
		s.drop("refusals", 1)
		return
	}
	r.Unit = Unit{}
	r.At = s.plausible(r.At)
	cutNames(&r.Policy, &r.Kind, &r.Monitor, &r.Window, &r.Why, &r.Budget)
	r.Value, r.Threshold = finite(r.Value), finite(r.Threshold)
	if u.refused == nil {
		u.refused = map[[2]string]int{}
	}
	u.refused[[2]string{r.Policy, r.Why}]++
	s.addEvent(refusals, string(u.ID), r.Policy, r.Why, r)
}

// Refusals implements Reader.
func (s *Store) Refusals(ctx context.Context, of UnitID, limit int) (out []Refusal, err error) {
	err = s.eachEvent(ctx, refusals, string(of), limit, func(subject string, data []byte) error {
		var r Refusal
		err := json.Unmarshal(data, &r)
		r.Unit.ID = UnitID(subject)
		out = append(out, r)
		return err
	})
	s.mu.RLock()
	defer s.mu.RUnlock()
	out = slices.DeleteFunc(out, func(r Refusal) bool { return r.At.IsZero() || s.units[r.Unit.ID] == nil })
	for i := range out {
		out[i].Unit = s.units[out[i].Unit.ID].Unit
	}
	slices.SortStableFunc(out, func(a, b Refusal) int { return b.At.Compare(a.At) })
	return out, err
}

// PutPolicyChange adds a change of policies.
func (s *Store) PutPolicyChange(c PolicyChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.At = s.plausible(c.At)
	c.Host, c.From, c.Version = cutText(c.Host, maxName), cutText(c.From, maxText), cutText(c.Version, maxName)
	c.Unmatched, c.Why = cutText(c.Unmatched, maxName), cutText(c.Why, maxText)
	for _, list := range []*[]string{&c.Added, &c.Removed, &c.Changed} {
		*list = slices.Clone((*list)[:min(len(*list), maxListedChanges)])
		for i, name := range *list {
			(*list)[i] = cutText(name, maxName)
		}
	}
	s.addEvent(changes, "", "", "", c)
}

// PolicyChanges implements Reader.
func (s *Store) PolicyChanges(ctx context.Context) (out []PolicyChange, err error) {
	err = s.eachEvent(ctx, changes, "", 0, func(_ string, data []byte) error {
		out = append(out, PolicyChange{})
		return json.Unmarshal(data, &out[len(out)-1])
	})
	return out, err
}
