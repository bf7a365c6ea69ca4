// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"container/heap"
	"strings"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// heatOf returns the key that units are ordered by: a unit that is gone is the
// coldest.
func heatOf(u *trigger.Unit) float64 {
	if u.Gone() {
		return -1
	}
	return u.Heat()
}

// coldest is a heap whose first element gives way first: units without a record
// that is due come before others, then the colder, then by name.
type coldest []*unitRecords

func (c coldest) Len() int { return len(c) }

func (c coldest) Less(i, j int) bool {
	a, b := c[i], c[j]
	if (a.due > 0) != (b.due > 0) {
		return b.due > 0
	}
	if a.heat != b.heat {
		return a.heat < b.heat
	}
	return strings.Compare(a.unit.Name(), b.unit.Name()) < 0
}

func (c coldest) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].index, c[j].index = i, j
}

// Push is of heap.Interface.
func (c *coldest) Push(x any) {
	t := x.(*unitRecords)
	t.index = len(*c)
	*c = append(*c, t)
}

// Pop is of heap.Interface.
func (c *coldest) Pop() any {
	last := len(*c) - 1
	t := (*c)[last]
	(*c)[last] = nil
	*c = (*c)[:last]
	return t
}

func (c *coldest) remove(t *unitRecords, sorted bool) {
	if sorted {
		heap.Remove(c, t.index)
		return
	}
	c.Swap(t.index, len(*c)-1)
	c.Pop()
}
